"""Adds what a pass takes to the levels of its queue: the periods of a roll-up, and the slices of a window.

An add writes only the rows of its queue, each with its time. The pass that takes a row adds its updates to all levels,
in its own transaction: so each update counts in each level exactly once, and a level gets one update for each key and
period of a pass, however many adds there were. Updates that a pass folds, stages or sets aside are in the levels
already: written as rows again, they have no time.

Combined updates that are no updates themselves, for example because a set is too large, are added one by one. So are
those of a key at which the combiner fails, or has ended workers: passes over the level set them aside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from cq.combiners import Combiner, built_in_combiner, combine_many
from cq.config.queue import QueueConfig
from cq.config.rollup import RollUpLevel, encoded_level_keys
from cq.config.window import WindowSpec, milliseconds
from cq.failure import is_failure
from cq.keys.expiry import ExpiryKeys, pack_time
from cq.passes.effects import Effects
from cq.passes.view import View
from cq.queue.adds import PackedAdd
from cq.queue.packing import Checked, check_updates
from cq.queue.rows import Row, Updates, timed
from cq.store.api import error_code

Periods = RollUpLevel | WindowSpec


def feed(effects: Effects, view: View) -> None:
    """Add the updates that a pass takes to the levels of its queue; periods that are over are dropped."""
    rows = view.rows_with_taken()
    if not any(row.times for row in rows):
        return
    feeder = _LevelAdder(effects, view)
    for level, periods in zip(view.levels, view.config.fed.values(), strict=True):
        feeder.add(level, periods, updates_by_period(periods, rows, view.taken.updates))


def updates_by_period(periods: Periods | None, rows: Iterable[Row], updates: Updates) -> dict[int, Updates]:
    """{period: its updates}; `updates` has those of all rows, which are returned as they are for a single period.

    Without periods, all updates are of period 0.
    """
    rows = list(rows)
    if all(row.times for row in rows):
        ends = {time for row in rows for time in (min(row.times), max(row.times))}
        single = {0} if periods is None else {periods.period_of(time) for time in (min(ends), max(ends))}
        if len(single) == 1:
            return {single.pop(): updates}
    return grouped_by_period(periods, timed(rows))


def grouped_by_period(
    periods: Periods | None, updates: Iterable[tuple[bytes, Any, int]]
) -> dict[int, Updates]:
    """{period: {encoded key: updates}} of updates with times."""
    found: dict[int, Updates] = {}
    period_of: Callable[[int], int] = (lambda _: 0) if periods is None else periods.period_of
    for encoded, update, time in updates:
        found.setdefault(period_of(time), {}).setdefault(encoded, []).append(update)
    return found


class _LevelAdder:
    """Adds updates to the levels of a queue, in the effects of one pass."""

    def __init__(self, effects: Effects, view: View) -> None:
        self._effects = effects
        self._config = view.config
        self._combiner = view.code.combiner
        self._rejected = view.plan.rejected
        self._now = milliseconds(None)
        # By the identity of the updates, with these: levels often share them.
        self._combined: dict[int, tuple[Updates, Checked]] = {}

    def add(self, level: QueueConfig, periods: Periods | None, by_period: dict[int, Updates]) -> None:
        """Add updates to a level, by their periods."""
        encoded: list[bytes] = []
        values: list[Any] = []
        over: list[int] = []
        for period, updates in by_period.items():
            if periods is not None and periods.is_over(period, self._now):
                over.append(period)
                continue
            combined = self._combine(updates)
            keys = combined.encoded
            encoded += keys if periods is None else encoded_level_keys(self._config.key, keys, [period])
            values += combined.values
        if encoded:
            shape = shape_for(level, self._config)
            self._effects.levels.append(PackedAdd.of_checked(shape, Checked(encoded, values)))
        if over:
            # As if a pass over the level had deleted them.
            self._effects.byte_max(ExpiryKeys(level.name).latest_expired, pack_time(max(0, *over)))

    def _combine(self, updates: Updates) -> Checked:
        """The updates with those of each key combined, or as they are if that is not possible."""
        if id(updates) not in self._combined:
            combined = combined_updates(self._config, self._combiner, updates, self._rejected)
            self._combined[id(updates)] = updates, combined
        return self._combined[id(updates)][1]


def shape_for(level: QueueConfig, config: QueueConfig) -> QueueConfig:
    """The configuration of a level of its former shape, for updates of the former version of a combiner."""
    is_current = level.combiner == config.combiner
    return level if is_current else level.under_former_shape() or level


def combined_updates(
    config: QueueConfig, combiner: Combiner, updates: Updates, rejected: Collection[bytes] = ()
) -> Checked:
    """The updates with those of each key combined, except for rejected keys, and those that cannot be combined."""
    encoded, lists = list(updates), list(updates.values())
    if max(map(len, lists), default=0) < 2:
        return Checked(encoded, [one for (one,) in lists])
    values = None if rejected else _combined(config, combiner, encoded, lists)
    if values is not None:
        return Checked(encoded, values)
    found = Checked([], [])
    for key, some in updates.items():
        is_single = len(some) == 1 or key in rejected
        values = some if is_single else _combined(config, combiner, [key], [some]) or some
        found.encoded.extend([key] * len(values))
        found.values.extend(values)
    return found


def _combined(
    config: QueueConfig, combiner: Combiner, encoded: list[bytes], lists: list[list[Any]]
) -> list[Any] | None:
    """The combination of each key's updates; None if the combiner fails, or if a result is no update."""
    try:
        is_built_in = built_in_combiner(combiner.name) is combiner
        keys = [None] * len(lists) if is_built_in else config.key.decode_all(encoded)
        values = combine_many(combiner, keys, lists)
        check_updates(config, keys, values)
    except BaseException as error:
        if error_code(error) is not None or not is_failure(error):
            raise
        return None
    return values
