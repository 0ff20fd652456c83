"""Variants of windows of other values than ints that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq import combiners, runtime
from cq.admin import levels
from cq.config.expiry import ExpirySpec
from cq.config.queue import QueueConfig
from cq.config.window import WindowSpec
from cq.observers import window_totals
from cq.queue import adds, slots
from cq.windows import slices
from cq.windows import window as windows


def rounds_what_leaves() -> Any:
    """The difference of two slices has 28 digits."""

    def between(combiner: Any, new: Any, old: Any) -> list[Any]:
        return [
            {item: +count for item, count in each.items()} if isinstance(each, dict) else +each
            for each in own(combiner, new, old)
        ]

    own = combiners.updates_between
    return patch.object(window_totals, "updates_between", between)


def merges_one_slice_less() -> Any:
    """A read leaves out the oldest slice that is in the window."""

    def ends(self: WindowSpec, now: int) -> range:
        found = own(self, now)
        return range(found.start + found.step, found.stop, found.step)

    own = WindowSpec.ends
    return patch.object(WindowSpec, "ends", ends)


def _keeps_slices(change: Callable[[QueueConfig, int], int]) -> Any:
    """Change for how many milliseconds after its end a slice is kept."""

    def made(config: QueueConfig) -> list[QueueConfig]:
        return [changed(each) if each.name == config.slices_name else each for each in own(config)]

    def changed(level: QueueConfig) -> QueueConfig:
        assert level.expiry is not None
        return replace(level, expiry=level.expiry._replace(period=change(level, level.expiry.period)))

    own = levels._levels
    return patch.object(levels, "_levels", made)


def keeps_slices_too_short() -> Any:
    """Workers delete a slice a second after its end."""
    return _keeps_slices(lambda level, period: 1_000)


def keeps_slices_one_too_short() -> Any:
    """Workers delete the slices that are subtracted a slice before they leave."""
    return _keeps_slices(lambda level, period: period if level.observers == () else period - 1_000)


def keeps_slices_two_too_short() -> Any:
    """Workers delete the slices that reads merge when they leave, by their own clocks."""
    return _keeps_slices(lambda level, period: period if level.observers else period - 2_000)


def adds_to_the_slice_of_now() -> Any:
    """An update with a time of its own counts in the slice of the add."""

    def write(tr: Any, config: Any, updates: Any, once: Any, times: Any) -> None:
        own(tr, config, updates, once, times=[runtime.time_ns() // 1_000_000])

    own = adds.write_updates
    return patch.object(windows, "write_updates", write)


def deletes_listed_keys_early() -> Any:
    """The keys of a window that reads merge are deleted when they have had no update for two seconds."""
    return patch.object(levels, "_expiry_of_keys", lambda config, window: ExpirySpec(2, 1))


def loses_maxima_of_zero() -> Any:
    """A read takes a maximum of 0 for none."""
    own = slots.combined
    return patch.object(slices, "combined", lambda combiner, key, values: own(combiner, key, values) or None)


RECENT: Final[dict[Callable[[], Any], int]] = {
    rounds_what_leaves: 10,
    merges_one_slice_less: 10,
    keeps_slices_too_short: 10,
    keeps_slices_one_too_short: 10,
    keeps_slices_two_too_short: 20,
    adds_to_the_slice_of_now: 20,
    deletes_listed_keys_early: 20,
    loses_maxima_of_zero: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
WITH: Final[Mapping[Callable[[], Any], frozenset[str]]] = {
    keeps_slices_two_too_short: frozenset(("clocks differ",)),
}
"""{canary: the kinds that all of its plans have}."""
