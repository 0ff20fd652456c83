"""Which queues a worker can work on: those configured that are not paused and whose code it has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cq import keys, runtime
from cq.admin.backfill import current_generation, publish_generations
from cq.admin.rebucket import finish_rebucket
from cq.app import App, QueueCode
from cq.config.queue import Flags, queue_names, read_config, read_flags
from cq.errors import ConfigurationError, CorruptData, CqError, QueueNotConfigured
from cq.feeds.config import is_feed
from cq.keys import QueueKeys
from cq.observers.builtin import FACTORIES, check_settings
from cq.observers.feeds.observer import check_feed
from cq.plain_text import describe
from cq.queue.rows import notified
from cq.store.api import Database, Transaction, Void, error_code
from cq.store.transact import transact


@dataclass(slots=True)
class QueueCheck:
    """A queue as configured: its code, or why it is to be left alone."""

    code: QueueCode | None
    problem: str = ""
    is_switched: bool = True
    flags: Flags = field(default_factory=Flags)


def find_queues(
    db: Database, app: App, names: Sequence[str], *, is_strict: bool = True
) -> tuple[dict[str, QueueCheck], Void]:
    """The queues of these names, or all, and a watch on every change of any queue's configuration.

    Observers that have been told of all values meanwhile are switched to. If it is strict, this raises
    `QueueNotConfigured` for a name given that is neither a queue's, nor a feed's, nor that of an exporter of the
    application; else that is its problem.
    """
    found, watch = transact(db, lambda tr: _read(tr, app, names, is_strict))
    for name, each in found.items():
        # It may just have been deleted, of which the watch tells; what cannot be read its tasks will say.
        with suppress(QueueNotConfigured, CorruptData):
            if not each.is_switched:
                publish_generations(db, name)
            if each.code is not None and each.code.config.former is not None:
                finish_rebucket(db, name)
    return found, watch


def _read(
    tr: Transaction, app: App, names: Sequence[str], is_strict: bool
) -> tuple[dict[str, QueueCheck], Void]:
    found = {}
    for name in names or queue_names(tr.snapshot):
        try:
            found[name] = _find(tr, app, name)
        except QueueNotConfigured as error:
            if name in app.exporters or is_feed(tr.snapshot, name):
                continue
            if is_strict and name in names:
                raise
            found[name] = QueueCheck(None, str(error))
    return found, tr.watch(keys.CHANGED)


def _find(tr: Transaction, app: App, name: str) -> QueueCheck:
    flags = Flags()
    try:
        config = read_config(tr.snapshot, name)
        flags = read_flags(tr.snapshot, name)
        if flags.is_paused(runtime.time()):
            return QueueCheck(None, f"queue {name!r} is paused ({flags.reason})", flags=flags)
        code = app.code(config, FACTORIES)
        check_settings(config)
        check_feed(tr.snapshot, config)
        switched = all(
            current_generation(tr.snapshot, name, each.name) == each.generation for each in config.observers
        )
    except QueueNotConfigured:
        raise
    except (ConfigurationError, CorruptData) as error:
        return QueueCheck(None, str(error), flags=flags)
    except Exception as error:
        if error_code(error) is not None:
            raise
        # What the application makes its observers with holds nobody else up.
        return QueueCheck(None, f"the code of queue {name!r} cannot be made: {describe(error)}", flags=flags)
    return QueueCheck(code, is_switched=switched, flags=flags)


def notified_buckets(db: Database, names: list[str]) -> dict[str, list[tuple[int, int]]]:
    """The buckets of these queues with work, by generation and number, at one read version for all of them."""

    def read(tr: Transaction) -> dict[str, list[tuple[int, int]]]:
        ranges = {name: tr.snapshot.get_range(*QueueKeys(name).notifications()) for name in names}
        found = {name: notified(rows, QueueKeys(name)) for name, rows in ranges.items()}
        return {name: _that_are(tr, name, buckets) for name, buckets in found.items()}

    return transact(db, read)


def _that_are(tr: Transaction, name: str, buckets: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of these buckets that the queue has; nobody would ever come to an end with others."""
    if not buckets:
        return []
    try:
        config = read_config(tr.snapshot, name)
    except CqError:
        return buckets  # who looks at them says what is wrong
    return [bucket for bucket in buckets if config.has_bucket(*bucket)]
