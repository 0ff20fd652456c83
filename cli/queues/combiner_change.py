"""The change of the version of a queue's combiner by `cq configure`, before all other settings change."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from cq.admin.configure import RequestedSettings, change, requested
from cq.admin.conversion import is_raised
from cq.admin.rebucketing import finish_rebucket
from cq.admin.repeated_reports import count_values
from cq.cli.queues.waiting import AwaitedWork, wait_for_workers
from cq.cli.shared.output import quantity
from cq.config.queue import Named, QueueConfig
from cq.keys import QueueKeys
from cq.store.api import Transaction
from cq.store.sizes import count_rows
from cq.store.transact import transact


@dataclass(frozen=True, slots=True)
class CombinerChange:
    """A change of the version of a queue's combiner, to be made or in progress.

    Attributes:
        queue: the queue.
        before, after: the combiners.
        is_begun: whether it is in progress.
        rest: what workers with the later version do.
    """

    queue: str
    before: Named
    after: Named
    is_begun: bool
    rest: str

    def __str__(self) -> str:
        return (
            f"the combiner of queue {self.queue!r} changes from {self.before} to {self.after}: workers with "
            f"{self.before} combine the updates that are queued now; then those with {self.after} {self.rest}"
        )


def combiner_change(db: Any, queue: str, wanted: RequestedSettings) -> CombinerChange | None:
    """The change of a combiner that is wanted or in progress; None if there is none."""

    def read(tr: Transaction) -> CombinerChange | None:
        config = _stored(tr, queue)
        if config is None or wanted.combiner is None:
            return None
        after = Named(wanted.combiner.name, wanted.combiner.version)
        if config.conversion is not None and config.former is not None and config.combiner == after:
            return CombinerChange(queue, config.conversion.former, after, True, "take over")
        if not is_raised(config, wanted.combiner):
            return None
        found = count_values(tr.snapshot, queue)
        number = f"{'' if found.exact else 'about '}{quantity(found.rows, 'value')}"
        values = f"convert {number}" if wanted.combiner.convert else f"keep the {number} as they are"
        return CombinerChange(queue, config.combiner, after, False, f"{values}, and continue")

    return transact(db, read)


def make_change(db: Any, found: CombinerChange, wanted: RequestedSettings) -> None:
    """Begin the change of the combiner, unless it is begun, and wait until the former version has done its part."""
    if not found.is_begun:
        change(db, found.queue, requested(combiner=wanted.combiner, creates=False))
    awaited = AwaitedWork(
        found.queue,
        f"with {found.before} combine the former updates of",
        lambda status: _left(db, found.queue),
        "run this command again to continue",
    )
    wait_for_workers(db, awaited, lambda: not _left(db, found.queue))


def _left(db: Any, queue: str) -> str:
    """What the former version of the combiner must still do for a queue and its levels; empty if nothing is left."""

    config = transact(db, lambda tr: _stored(tr, queue))
    for name in config.names if config else []:
        finish_rebucket(db, name)
        if left := transact(db, partial(_left_of, name=name)):
            return left
    return ""


def _left_of(tr: Transaction, name: str) -> str:
    config, keys = _stored(tr, name), QueueKeys(name)
    if config is None or config.former is None:
        return ""
    if tr.snapshot.get_range(*keys.aside(), limit=1).to_list():
        return (
            f"updates of queue {name!r} are set aside, run `cq aside retry {name}` or `cq aside drop {name}`"
        )
    rows = count_rows(tr.snapshot, *keys.of_generation(config.former.generation).rows)
    number = f"{'' if rows.exact else 'about '}{quantity(rows.rows, 'row')}"
    return f"{number} of queue {name!r} to combine"


def _stored(tr: Transaction, name: str) -> QueueConfig | None:
    stored = tr.snapshot.get(QueueKeys(name).config).value
    return None if stored is None else QueueConfig.from_bytes(name, stored)
