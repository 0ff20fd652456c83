"""Canaries of windows, see `canary`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq import runtime
from cq.config.queue import TOTALS as OBSERVER
from cq.config.window import WindowSpec
from cq.keys import QueueKeys
from cq.observer import EXPIRY, UPDATES, Change
from cq.observers import builtin, distinct
from cq.passes.batch import Batch, Step
from cq.queue import rows
from cq.store.transact import transact
from tests.simulation.canary import Canaries, reads_without_conflict
from tests.simulation.visiting import SLICES, TOTALS

windows = Canaries("windows")
_PENDING = "cq.windows.slices.read_pending_updates"


def _observes(name: str, change: Callable[[Callable[[Any, Any], object], Any, list[Change]], object]) -> Any:
    """Change how a built-in observer is called."""
    function = builtin.FACTORIES[name]

    def observer(config: Any, settings: Any, generation: int) -> Any:
        keep = function(config, settings, generation)
        return lambda tr, changes: change(keep, tr, changes)

    return patch.dict(builtin.FACTORIES, {name: observer})


@windows.patches()
def adds_without_leaving() -> Any:
    """A slice that leaves the window stays in the total."""
    return _observes(
        OBSERVER, lambda keep, tr, changes: keep(tr, [each for each in changes if each.cause != EXPIRY])
    )


@windows.patches(also={"purge"})
def subtracts_what_is_purged() -> Any:
    """A purge of the slices is subtracted from totals that are purged, too."""
    return _observes(
        OBSERVER, lambda keep, tr, changes: keep(tr, [replace(each, cause=UPDATES) for each in changes])
    )


@windows.patches()
def adds_whole_slices() -> Any:
    """A total gets the new value of a slice instead of its difference."""
    return _observes(
        OBSERVER,
        lambda keep, tr, changes: keep(
            tr, [replace(each, old=None) if each.new else each for each in changes]
        ),
    )


@windows.patches()
def adds_totals_beside_the_pass() -> Any:
    """Totals are changed in a transaction of their own, again if the pass is tried again."""
    return _observes(OBSERVER, lambda keep, tr, changes: transact(tr.db, lambda own: keep(own, changes)))


@windows.patches()
def counts_visits_for_visitors() -> Any:
    """Each change of a value counts as a distinct key that comes."""
    return _observes(
        distinct.NAME, lambda count, tr, changes: count(tr, [replace(each, old=None) for each in changes])
    )


@windows.patches(seed=31)
def takes_out_side_by_side() -> Any:
    """Two passes over the slices do not conflict."""
    return reads_without_conflict(lambda key: key.startswith(QueueKeys(SLICES).prefix + b"b"))


@windows.replaces("cq.passes.combine_pass.feed")
def feeds_no_folded_updates(feed: Any, tr: Any, combiner: Any, taken: Batch) -> None:
    """A pass that folds a backlog adds nothing to the slices, and the rows that it writes have no times."""
    if taken.decision.step is not Step.FOLD:
        feed(tr, combiner, taken)


@windows.replaces("cq.passes.feeding.updates_by_period")
def feeds_by_the_clock(_: Any, periods: Any, found: Any, updates: Any) -> Any:
    """Updates are in the slice of the pass that takes them."""
    now = runtime.time_ns() // 1_000_000
    return {periods.period_of(now): rows.by_key(row for row in found if row.times)}


@windows.replaces("cq.passes.feeding._LevelAdder.add")
def drops_late_slices(add: Any, *given: Any) -> None:
    """A pass drops updates of a slice that is about to leave, and readers count it until then."""

    def is_over(self: WindowSpec, end: int, now: int) -> bool:
        return end + self.width - self.slice <= now

    with patch.object(WindowSpec, "is_over", is_over):
        add(*given)


@windows.replaces("cq.config.window.WindowSpec.period_of")
def takes_out_too_early(_: Any, self: WindowSpec, at: int) -> int:
    """What happened leaves a width after it, not after its slice."""
    return at // self.slice * self.slice


@windows.replaces("cq.admin.purge.with_levels", seed=3, also={"purge"})
def purges_no_totals(with_levels: Any, *given: Any) -> list[Any]:
    """A purge leaves the totals."""
    return [each for each in with_levels(*given) if each.name != TOTALS]


@windows.replaces("cq.windows.slices.read_overdue")
def reads_without_overdue(*_: Any) -> dict[Any, Any]:
    """A window is read with the slices that have left it and that no worker has deleted."""
    return {}


@windows.replaces("cq.windows.slices.read_pending_rows")
def reads_without_rows(*_: Any) -> list[Any]:
    """A read forgets what is queued in the queue."""
    return []


@windows.replaces(_PENDING)
def reads_without_queued_slices(read: Any, snapshot: Any, config: Any, *given: Any) -> Any:
    """A read forgets what is queued for the slices."""
    return {} if config.name == SLICES else read(snapshot, config, *given)


@windows.replaces(_PENDING)
def reads_without_queued_totals(read: Any, snapshot: Any, config: Any, *given: Any) -> Any:
    """A read forgets what is queued for the totals."""
    return {} if config.name == TOTALS else read(snapshot, config, *given)
