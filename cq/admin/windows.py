"""Windows in configurations: workers subtract the updates that leave, or reads merge the slices that are inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cq.config.expiry import ExpirySpec
from cq.config.queue import QueueConfig
from cq.config.rollup import RollUp, RollUpLevel
from cq.config.window import WindowSpec
from cq.errors import ConfigurationConflict, InvalidConfiguration
from cq.keys import check_name
from cq.queue.window_rows import has_removals

MAX_SLICES: Final = 1_000
"""Slices of a window that reads merge, at most: each read of a key reads all of them."""
_SECOND_MS: Final = 1_000


def with_window(current: QueueConfig, wanted: WindowSpec | None, *, is_new: bool) -> QueueConfig:
    """The configuration of a queue with the wanted window; None: with the one that it has.

    The slices of a window without subtraction are the periods of a level of a roll-up. Raises `InvalidConfiguration` if
    the queue cannot have the window, `ConfigurationConflict` if it was created without one, or with other slices that
    reads merge.
    """
    if wanted in (None, current.window):
        _refuse_observers(current)
        return current
    if not is_new and (
        current.window is None or (current.merges_window and current.window.slice != wanted.slice)
    ):
        # Its present updates are in no rows or slices of the wanted window.
        raise ConfigurationConflict(current.name, {"window": (current.window or "none", wanted)})
    if current.rollup is not None and not current.merges_window:
        raise InvalidConfiguration(
            f"queue {current.name!r} with a window cannot have a roll-up: `merged_series` reads the last minutes of one"
        )
    changed = replace(current, window=wanted)
    if not has_removals(current):
        changed = _with_slices(changed, wanted)
        _refuse_observers(changed)
    return changed


def _with_slices(config: QueueConfig, window: WindowSpec) -> QueueConfig:
    if config.takes_delete:
        raise InvalidConfiguration(
            f"the combiner {config.combiner.name} cannot have a window: give the queue an expiry of "
            f"{window.width / _SECOND_MS:g} s (`cq configure {config.name} --expire`), which deletes a key without "
            "updates"
        )
    if window.slice % _SECOND_MS or window.width // window.slice > MAX_SLICES:
        raise InvalidConfiguration(
            f"expected at most {MAX_SLICES:,} slices of whole seconds for a window of the combiner "
            f"{config.combiner.name}, whose slices are merged at each read, got: {window}"
        )
    step, width = window.slice // _SECOND_MS, window.width // _SECOND_MS
    # An update can be a slice ahead, and leaves a width after the end of its slice. One slice more, as the clocks of
    # readers may be behind those of workers.
    kept = width + 3 * step
    level = RollUpLevel(step, kept)
    check_name(level.queue_of(config.name))
    return replace(config, rollup=RollUp((level,), is_derived=False), expiry=ExpirySpec.parse(kept) or None)


def _refuse_observers(config: QueueConfig) -> None:
    if config.merges_window and config.rollup and config.observers:
        level = config.rollup.levels[0].queue_of(config.name)
        raise InvalidConfiguration(
            f"no pass has the totals of queue {config.name!r}, as each read merges the slices of its window: configure "
            f"the observers of queue {level!r}, which has a value for each key and slice"
        )
