"""Variants of windows of other values than ints that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from cq import runtime
from cq.admin import windows as configured
from cq.config.rollup import RollUpLevel
from cq.queue import window_rows
from cq.queue.adds import write_with_levels
from cq.windows import slices
from cq.windows import window as windows


def rounds_what_leaves() -> Any:
    """The removal of a decimal has 28 digits."""

    def removed(combiner: Any, updates: Any) -> list[Any]:
        return [
            {item: -count for item, count in each.items()} if isinstance(each, dict) else -each
            for each in updates
            if each
        ]

    return patch.object(window_rows, "_each_removed", removed)


def merges_one_slice_less() -> Any:
    """A read leaves out the oldest slice that is in the window."""

    def times(window: Any, now: int) -> range:
        found = own(window, now)
        return range(found.start + found.step, found.stop, found.step)

    own = slices.slice_times
    return patch.object(slices, "slice_times", times)


def keeps_slices_too_short() -> Any:
    """Workers delete a slice at its end."""
    return patch.object(configured, "RollUpLevel", lambda step, kept: RollUpLevel(step, step))


def keeps_slices_two_too_short() -> Any:
    """Workers delete a slice when it leaves, by their own clocks."""
    return patch.object(configured, "RollUpLevel", lambda step, kept: RollUpLevel(step, kept - 2 * step))


def adds_to_the_slice_of_now() -> Any:
    """An update with a time of its own counts in the slice of the add."""

    def write(tr: Any, config: Any, updates: Any, once: Any, times: Any) -> None:
        write_with_levels(tr, config, updates, once, [int(runtime.time())])

    return patch.object(windows, "write_with_levels", write)


RECENT: Final[dict[Callable[[], Any], int]] = {
    rounds_what_leaves: 10,
    merges_one_slice_less: 10,
    keeps_slices_too_short: 10,
    keeps_slices_two_too_short: 20,
    adds_to_the_slice_of_now: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
