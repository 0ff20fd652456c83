"""Which queues a worker works on: those configured that are not paused and whose code it has."""

from __future__ import annotations

from dataclasses import dataclass

from cq import keys
from cq.app import App, QueueCode
from cq.backfill import current_generation, switch_observers
from cq.config import queue_names, read_config, read_flags
from cq.errors import ConfigurationError, CorruptData, QueueNotConfigured
from cq.failures import FailureShare
from cq.keys import QueueKeys
from cq.observers.builtin import FACTORIES
from cq.observers.jobs import Job
from cq.store.api import Database, Transaction, Void
from cq.store.transact import transact


@dataclass(slots=True)
class Found:
    """A queue as configured: its code, or why it is to be left alone."""

    code: QueueCode | None
    problem: str = ""
    is_switched: bool = True


@dataclass(slots=True)
class OpenQueue:
    """A queue that is worked on: its code, the share of its keys that fail, its buckets' jobs and all others."""

    code: QueueCode
    failures: FailureShare
    buckets: list[Job]
    others: list[Job]

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return self.buckets + self.others

    def retire(self) -> None:
        """Run no more of its jobs."""
        for job in self.jobs:
            job.retire()


def find_queues(db: Database, app: App, names: list[str]) -> tuple[dict[str, Found], Void]:
    """The queues of these names, or all, and a watch on every change of any queue's configuration.

    Observers that have been told of all values meanwhile are switched to. Raises `QueueNotConfigured` for a name given.
    """
    found, watch = transact(db, lambda tr: _read(tr, app, names))
    for name, each in found.items():
        if not each.is_switched:
            switch_observers(db, name)
    return found, watch


def _read(tr: Transaction, app: App, names: list[str]) -> tuple[dict[str, Found], Void]:
    found = {name: _find(tr, app, name) for name in names or queue_names(tr.snapshot)}
    return found, tr.watch(keys.CHANGED)


def _find(tr: Transaction, app: App, name: str) -> Found:
    try:
        config = read_config(tr.snapshot, name)
        flags = read_flags(tr.snapshot, name)
        if flags.paused:
            return Found(None, f"queue {name!r} is paused ({flags.reason})")
        code = app.code(config, FACTORIES)
    except QueueNotConfigured:
        raise
    except (ConfigurationError, CorruptData) as error:
        return Found(None, str(error))
    switched = all(
        current_generation(tr.snapshot, name, each.name) == each.generation for each in config.observers
    )
    return Found(code, is_switched=switched)


def notified_buckets(db: Database, names: list[str]) -> dict[str, list[int]]:
    """The buckets of these queues with work, at one read version for all of them."""

    def read(tr: Transaction) -> dict[str, list[int]]:
        ranges = {name: tr.snapshot.get_range(*QueueKeys(name).notifications()) for name in names}
        return {
            name: [QueueKeys(name).bucket_of_notification(row.key)[1] for row in rows]
            for name, rows in ranges.items()
        }

    return transact(db, read)
