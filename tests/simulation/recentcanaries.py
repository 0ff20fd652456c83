"""Canaries of windows of other values than ints, see `canary`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq import runtime
from cq.admin import levels
from cq.config.expiry import ExpirySpec
from cq.config.queue import QueueConfig
from tests.simulation.canary import Canaries

recent = Canaries("recent")


@recent.replaces("cq.observers.window_totals.updates_between")
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


@recent.patches(seed=1, also={"clocks differ"})
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


@recent.replaces("cq.windows.slices.combined")
def loses_maxima_of_zero(combined: Any, *given: Any) -> Any:
    """A read takes a maximum of 0 for none."""
    return combined(*given) or None
