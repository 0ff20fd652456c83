"""Canaries of windows, of ints and of other values; see `canary`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq import runtime
from cq.admin import levels
from cq.config.expiry import ExpirySpec
from cq.config.queue import TOTALS as OBSERVER
from cq.config.queue import QueueConfig
from cq.config.window import WindowSpec
from cq.keys import QueueKeys
from cq.observer import EXPIRY, UPDATES
from cq.observers import distinct
from cq.passes.view import Step, View
from cq.queue import rows
from cq.store.transact import transact
from tests.simulation.canary import Canaries, observes, reads_without_conflict
from tests.simulation.visiting import SLICES, TOTALS

windows, recent = Canaries("windows"), Canaries("recent")
_PENDING = "cq.windows.slices.read_pending_updates"


@windows.patches(seed=1)
def adds_without_leaving() -> Any:
    """A slice that leaves the window stays in the total."""
    return observes(
        OBSERVER, lambda keep, tr, changes: keep(tr, [each for each in changes if each.cause != EXPIRY])
    )


@windows.patches(also={"purge"}, seed=3)
def subtracts_what_is_purged() -> Any:
    """A purge of the slices is subtracted from totals that are purged, too."""
    return observes(
        OBSERVER, lambda keep, tr, changes: keep(tr, [replace(each, cause=UPDATES) for each in changes])
    )


@windows.patches(seed=1)
def adds_whole_slices() -> Any:
    """A total gets the new value of a slice instead of its difference."""
    return observes(
        OBSERVER,
        lambda keep, tr, changes: keep(
            tr, [replace(each, old=None) if each.new else each for each in changes]
        ),
    )


@windows.patches()
def adds_totals_beside_the_pass() -> Any:
    """Totals are changed in a transaction of their own, again if the pass is tried again."""
    return observes(OBSERVER, lambda keep, tr, changes: transact(tr.db, lambda own: keep(own, changes)))


@windows.patches()
def counts_visits_for_visitors() -> Any:
    """Each change of a value counts as a distinct key that comes."""
    return observes(
        distinct.NAME, lambda count, tr, changes: count(tr, [replace(each, old=None) for each in changes])
    )


@windows.patches(seed=42)
def takes_out_side_by_side() -> Any:
    """Two passes over the slices do not conflict."""
    return reads_without_conflict(lambda key: key.startswith(QueueKeys(SLICES).prefix + b"b"))


@windows.replaces("cq.passes.combining.feed", seed=3)
def feeds_no_folded_updates(feed: Any, effects: Any, view: View) -> None:
    """A pass that folds a backlog adds nothing to the slices, and the rows that it writes have no times."""
    if view.taken.step is not Step.FOLD:
        feed(effects, view)


@windows.replaces("cq.passes.feeding.updates_by_period")
def feeds_by_the_clock(_: Any, periods: Any, found: Any, updates: Any) -> Any:
    """Updates are in the slice of the pass that takes them."""
    now = runtime.time_ns() // 1_000_000
    return {periods.period_of(now): rows.by_key(row for row in found if row.times)}


@windows.replaces("cq.passes.feeding._LevelAdder.add", seed=5)
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


@windows.replaces("cq.admin.purging.with_levels", seed=3, also={"purge"})
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


@windows.replaces(_PENDING, seed=1)
def reads_without_queued_totals(read: Any, snapshot: Any, config: Any, *given: Any) -> Any:
    """A read forgets what is queued for the totals."""
    return {} if config.name == TOTALS else read(snapshot, config, *given)


@recent.replaces("cq.observers.window_totals.updates_between", seed=1)
def rounds_what_leaves(between: Any, *given: Any) -> list[Any]:
    """The difference of two slices has 28 digits."""
    return [
        {item: +count for item, count in each.items()} if isinstance(each, dict) else +each
        for each in between(*given)
    ]


@recent.replaces("cq.config.window.WindowSpec.ends")
def merges_one_slice_less(ends: Any, self: Any, now: int) -> range:
    """A read leaves out the oldest slice that is in the window."""
    found = ends(self, now)
    return range(found.start + found.step, found.stop, found.step)


def _keeps_slices(change: Callable[[QueueConfig, int], int]) -> Any:
    """Change for how many milliseconds after its end a slice is kept."""

    def made(config: QueueConfig) -> list[QueueConfig]:
        return [changed(each) if each.name == config.slices_name else each for each in own(config)]

    def changed(level: QueueConfig) -> QueueConfig:
        assert level.expiry is not None
        return replace(level, expiry=level.expiry._replace(period=change(level, level.expiry.period)))

    own = levels._levels
    return patch.object(levels, "_levels", made)


@recent.patches()
def keeps_slices_too_short() -> Any:
    """Workers delete a slice a second after its end."""
    return _keeps_slices(lambda level, period: 1_000)


@recent.patches(seed=1)
def keeps_slices_one_too_short() -> Any:
    """Workers delete the slices that are subtracted a slice before they leave."""
    return _keeps_slices(lambda level, period: period if level.observers == () else period - 1_000)


@recent.patches(seed=6, also={"clocks differ"})
def keeps_slices_two_too_short() -> Any:
    """Workers delete the slices that reads merge when they leave, by their own clocks."""
    return _keeps_slices(lambda level, period: period if level.observers else period - 2_000)


@recent.replaces("cq.windows.window.write_updates", seed=2)
def adds_to_the_slice_of_now(write: Any, tr: Any, config: Any, updates: Any, once: Any, times: Any) -> None:
    """An update with a time of its own counts in the slice of the add."""
    write(tr, config, updates, once, times=[runtime.time_ns() // 1_000_000])


@recent.replaces("cq.admin.levels._expiry_of_keys")
def deletes_listed_keys_early(*_: Any) -> ExpirySpec:
    """The keys of a window that reads merge are deleted when they have had no update for two seconds."""
    return ExpirySpec(2, 1)


@recent.replaces("cq.windows.slices.combined", seed=2)
def loses_maxima_of_zero(combined: Any, *given: Any) -> Any:
    """A read takes a maximum of 0 for none."""
    return combined(*given) or None
