"""Variants of windows that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq import runtime
from cq.admin import levels, purge
from cq.config.queue import TOTALS as OBSERVER
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observer import EXPIRY, UPDATES, Change
from cq.observers import builtin, distinct, window_totals
from cq.passes import combine_pass, feeding, repacking
from cq.passes.batch import Batch, Step
from cq.queue import rows
from cq.store.transact import transact
from cq.windows import pending, slices
from tests.simulation.store import Reads, SimTransaction
from tests.simulation.visiting import SLICES, TOTALS


def _keeps_totals(change: Callable[[Callable[[Any, Any], object], Any, list[Change]], object]) -> Any:
    """Change how the observer of the totals is called."""
    function = window_totals.observer

    def observer(config: Any, settings: Any, generation: int) -> Any:
        keep = function(config, settings, generation)
        return lambda tr, changes: change(keep, tr, changes)

    return patch.dict(builtin.FACTORIES, {OBSERVER: observer})


def adds_without_leaving() -> Any:
    """A slice that leaves the window stays in the total."""
    return _keeps_totals(
        lambda keep, tr, changes: keep(tr, [each for each in changes if each.cause != EXPIRY])
    )


def subtracts_what_is_purged() -> Any:
    """A purge of the slices is subtracted from totals that are purged, too."""
    return _keeps_totals(
        lambda keep, tr, changes: keep(tr, [replace(each, cause=UPDATES) for each in changes])
    )


def adds_whole_slices() -> Any:
    """A total gets the new value of a slice instead of its difference."""
    return _keeps_totals(
        lambda keep, tr, changes: keep(
            tr, [replace(each, old=None) if each.new else each for each in changes]
        )
    )


def adds_totals_beside_the_pass() -> Any:
    """Totals are changed in a transaction of their own, again if the pass is tried again."""
    return _keeps_totals(lambda keep, tr, changes: transact(tr.db, lambda own: keep(own, changes)))


def takes_out_side_by_side() -> Any:
    """Two passes over the slices do not conflict."""
    get = Reads.get

    def weak(self: Reads, key: bytes) -> Any:
        is_state = isinstance(self, SimTransaction) and key.startswith(QueueKeys(SLICES).prefix + b"b")
        return get(self.snapshot if is_state else self, key)

    return patch.object(Reads, "get", weak)


@contextmanager
def feeds_all_tries() -> Iterator[None]:
    """What every try of an operation has added is in the slices."""

    def taken(self: Batch) -> list[rows.Row]:
        return [row for row in self.backlog.rows if self.is_taken(row.key)]

    def by_period(periods: Any, found: Any, updates: Any) -> Any:
        return feeding.grouped_by_period(periods, rows.timed(found))

    with (
        patch.object(Batch, "rows_with_taken", taken),
        patch.object(feeding, "updates_by_period", by_period),
    ):
        yield


def feeds_rows_again() -> Any:
    """A row keeps its time when a pass has folded it, and the next pass adds it to the slices again."""
    own = repacking.repack

    def repack(folded: Any, found: Any) -> dict[bytes, bytes]:
        times = next((row.times for row in found if row.times), ())
        packed = own(folded, found)
        if not times:
            return packed
        contents = {key: codec.decode(value)[1:] for key, value in packed.items()}
        return {key: codec.encode([[None, times[0]], *content]) for key, content in contents.items()}

    return patch.object(combine_pass, "repack", repack)


def feeds_no_folded_updates() -> Any:
    """A pass that folds a backlog adds nothing to the slices, and the rows that it writes have no times."""
    own = feeding.feed

    def feed(tr: Any, combiner: Any, taken: Batch) -> None:
        if taken.decision.step is not Step.FOLD:
            own(tr, combiner, taken)

    return patch.object(combine_pass, "feed", feed)


def feeds_by_the_clock() -> Any:
    """Updates are in the slice of the pass that takes them."""

    def by_period(periods: Any, found: Any, updates: Any) -> Any:
        now = runtime.time_ns() // 1_000_000
        return {periods.period_of(now): rows.by_key(row for row in found if row.times)}

    return patch.object(feeding, "updates_by_period", by_period)


def drops_late_slices() -> Any:
    """A pass drops updates of a slice that is about to leave, and readers count it until then."""

    def is_over(self: WindowSpec, end: int, now: int) -> bool:
        return end + self.width - self.slice <= now

    own = feeding._LevelAdder.add

    def add(self: Any, *given: Any) -> None:
        with patch.object(WindowSpec, "is_over", is_over):
            own(self, *given)

    return patch.object(feeding._LevelAdder, "add", add)


def takes_out_too_early() -> Any:
    """What happened leaves a width after it, not after its slice."""
    return patch.object(WindowSpec, "period_of", lambda self, at: at // self.slice * self.slice)


def purges_no_totals() -> Any:
    """A purge leaves the totals."""

    def some(tr: Any, config: Any) -> Any:
        return [each for each in own(tr, config) if each.name != TOTALS]

    own = levels.with_levels
    return patch.object(purge, "with_levels", some)


def counts_visits_for_visitors() -> Any:
    """Each change of a value counts as a distinct key that comes."""
    function = distinct.observer

    def observer(config: Any, settings: Any, generation: int) -> Any:
        count = function(config, settings, generation)
        return lambda tr, changes: count(tr, [replace(each, old=None) for each in changes])

    return patch.dict(builtin.FACTORIES, {distinct.NAME: observer})


def reads_without_overdue() -> Any:
    """A window is read with the slices that have left it and that no worker has deleted."""
    return patch.object(slices, "read_overdue", lambda snapshot, config, now, wanted=None: {})


def reads_without_rows() -> Any:
    """A read forgets what is queued in the queue."""
    return patch.object(slices, "read_pending_rows", lambda snapshot, config, wanted=None: [])


def _reads_without(name: str) -> Any:
    own = pending.read_pending_updates

    def read(snapshot: Any, config: Any, wanted: Any = None) -> Any:
        return {} if config.name == name else own(snapshot, config, wanted)

    return patch.object(slices, "read_pending_updates", read)


def reads_without_queued_slices() -> Any:
    """A read forgets what is queued for the slices."""
    return _reads_without(SLICES)


def reads_without_queued_totals() -> Any:
    """A read forgets what is queued for the totals."""
    return _reads_without(TOTALS)


VISITING: Final[dict[Callable[[], Any], int]] = {
    adds_without_leaving: 10,
    subtracts_what_is_purged: 20,
    adds_whole_slices: 10,
    adds_totals_beside_the_pass: 20,
    takes_out_side_by_side: 60,
    feeds_all_tries: 20,
    feeds_rows_again: 20,
    feeds_no_folded_updates: 20,
    feeds_by_the_clock: 20,
    drops_late_slices: 20,
    takes_out_too_early: 20,
    purges_no_totals: 20,
    counts_visits_for_visitors: 10,
    reads_without_overdue: 10,
    reads_without_rows: 10,
    reads_without_queued_slices: 10,
    reads_without_queued_totals: 10,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
WITH: Final[Mapping[Callable[[], Any], frozenset[str]]] = {
    subtracts_what_is_purged: frozenset(("purge",)),
    purges_no_totals: frozenset(("purge",)),
}
"""{canary: the kinds that all of its plans have}."""
