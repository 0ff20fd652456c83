"""Canaries of roll-ups, see `canary`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cq.admin import levels
from cq.config.rollup import RollUpLevel
from cq.config.window import milliseconds
from cq.encoding import codec
from cq.keys.expiry import pack_time
from cq.passes import combining
from cq.passes.effects import Effects
from cq.passes.view import Taken, View
from cq.queue.packing import Checked
from cq.queue.rows import Row, Updates, by_key, encode_row
from cq.store.transact import transact
from tests.simulation.canary import Canaries

rollups = Canaries("rollups")
_FEED = "cq.passes.combining.feed"
_BY_PERIOD = "cq.passes.feeding.updates_by_period"


@rollups.replaces("cq.config.expiry.ExpirySpec.latest_due", seed=28)
def expires_periods_early(_: Any, self: Any, now: float) -> int:
    """A period expires after half of its retention."""
    return int(now) - int(self.period) // 2


@rollups.replaces("cq.admin.purging.with_levels", seed=52)
def purges_no_levels(_: Any, tr: Any, config: Any) -> list[Any]:
    """A purge leaves the levels."""
    return [config]


@rollups.replaces("cq.passes.effects.Effects.write", seed=31)
def feeds_beside_the_pass(write: Any, self: Effects, tr: Any) -> None:
    """Levels get updates in a transaction of their own, again if the pass is tried again."""
    levels, self.levels = self.levels, []
    transact(tr.db, lambda own: [level.write(own) for level in levels])
    write(self, tr)


@rollups.replaces("cq.passes.feeding.combined_updates", seed=4, only={"opposite", "other times"})
def loses_a_maximum_of_zero(combine: Any, *given: Any) -> Checked:
    """Levels get no updates of 0."""
    pairs = [(key, value) for key, value in combine(*given).pairs if value]
    return Checked([key for key, _ in pairs], [value for _, value in pairs])


@rollups.replaces("cq.passes.combining.repack", seed=13)
def feeds_again_after_a_fold(
    repack: Any, folded: Mapping[bytes, bytes], rows: Sequence[Row]
) -> dict[bytes, bytes]:
    """Folded updates keep the time of a row, so the next pass adds them to the levels, too."""
    times = {row.key: list(row.times[:1]) for row in rows}
    return {key: _with_time(data, times[key]) for key, data in repack(folded, rows).items()}


def _with_time(data: bytes, times: list[int]) -> bytes:
    operation, *pairs = codec.decode(data)
    return codec.encode([[operation, *times] if times else operation, *pairs])


@rollups.replaces(_FEED, seed=27)
def feeds_staged_updates_again(feed: Any, effects: Effects, view: View) -> None:
    """What a former pass has staged is added to the levels when it is combined, too."""
    if found := [(key, codec.decode(data)) for key, data in view.staged.items() if data is not None]:
        now = milliseconds(None)
        staged = Row(b"", codec.encode([[None, now], *chain.from_iterable(found)]), None, [now])
        view = _taking(view, [staged, *view.rows_with_taken()])
    feed(effects, view)


def _taking(view: View, rows: list[Row]) -> View:
    """The view of a pass that takes these rows."""
    found = copy(view)
    found.rows, found.taken = rows, Taken(updates=by_key(rows))
    return found


def _rests(change: Callable[[Row, int], Sequence[int]]) -> Any:
    """Change the times of a row that a pass has taken a part of; the position is that of the first update left."""

    def encoded(row: Row, positions: Sequence[int]) -> bytes:
        is_rest = positions[0] > 0
        return encode_row(row._replace(times=change(row, positions[0])) if is_rest else row, positions)

    return patch.object(combining, "encode_row", encoded)


@rollups.patches(seed=1, only={"other times"})
def loses_the_times_of_a_rest() -> Any:
    """What remains of a row that is taken in parts has no times."""
    return _rests(lambda row, position: ())


@rollups.patches(seed=120, only={"other times"})
def shifts_the_times_of_a_rest() -> Any:
    """What remains of a row that is taken in parts has the times of the first updates."""
    return _rests(
        lambda row, position: (
            row.times if len(row.times) < 2 else [*row.times[:position], *row.times][: len(row.times)]
        )
    )


@rollups.replaces("cq.passes.view.View.rows_with_taken", seed=36, only={"other times"})
def feeds_whole_rows(_: Any, self: View) -> list[Row]:
    """The levels get all updates of a row that is taken in parts, each time."""
    rest = self.taken.rest
    return [*self.rows_taken, *([rest[0]] if rest and rest[1] else [])]


@rollups.replaces(_FEED, seed=43)
def feeds_nothing_set_aside(feed: Any, effects: Effects, view: View) -> None:
    """The levels do not get what a pass sets aside."""
    rows = []
    for row in view.rows_with_taken():
        rejected = view.plan.rejected
        kept = [number for number, (key, _) in enumerate(row.updates) if key not in rejected]
        times = [row.times[number] for number in kept] if len(row.times) > 1 else row.times
        rows += [row._replace(value=encode_row(row, kept), times=times)] if kept else []
    feed(effects, _taking(view, rows))


@rollups.replaces("cq.queue.set_aside.write_updates", seed=43)
def feeds_again_at_a_retry(write: Any, tr: Any, config: Any, updates: Any) -> None:
    """What was set aside has a time when it is added again."""
    write(tr, config, updates, times=[milliseconds(None)] if config.is_timed else ())


@rollups.replaces(_FEED, seed=30)
def feeds_repeated_operations(feed: Any, effects: Effects, view: View) -> None:
    """The levels get the updates of all tries of an operation."""
    found = copy(view)
    found.rows = view.backlog.rows
    feed(effects, _taking(view, found.rows_with_taken()))


@rollups.replaces(_BY_PERIOD)
def takes_periods_for_one(_: Any, periods: Any, rows: Any, updates: Updates) -> dict[int, Updates]:
    """All that a pass takes is in the period of the first update."""
    return {next(periods.period_of(row.times[0]) for row in rows if row.times): updates}


@rollups.replaces(_BY_PERIOD)
def feeds_other_periods(group: Any, level: RollUpLevel, *given: Any) -> Any:
    """A level gets periods of half its length."""
    return group(level._replace(period=level.period // 2), *given)


@rollups.replaces("cq.passes.feeding.pack_time", seed=307, only={"freezes", "deaths", "clocks differ"})
def drops_periods_without_a_word(*_: Any) -> bytes:
    """No one knows that updates of periods that are over were dropped."""
    return pack_time(0)


@rollups.patches(seed=18, only={"levels", "other times"})
def compares_levels_from_their_first_period_on() -> Any:
    """No one knows since when there is a level."""
    return patch.object(levels, "runtime", SimpleNamespace(time=lambda: 0.0))


@rollups.replaces("cq.admin.configure.removed_levels", seed=18, only={"levels", "other times"})
def leaves_levels_that_are_removed(*_: Any) -> list[Any]:
    """A level that is added again has what it had before."""
    return []


@rollups.replaces("cq.passes.feeding.shape_for", seed=22)
def feeds_former_updates_to_the_present_shape(_: Any, level: Any, config: Any) -> Any:
    """The new version of a combiner gets updates of the former one from the queue."""
    return level


@rollups.replaces("cq.admin.rebucketing.is_fed_by_former", seed=27, only={"version", "freezes"})
def finishes_levels_before_their_queue(*_: Any) -> bool:
    """The new version of a combiner begins in a level while the former one still feeds it."""
    return False


@rollups.replaces(
    "cq.admin.levels.refuse_while_rebucketing", seed=71, only={"version", "levels", "freezes", "rebucket"}
)
def adds_levels_to_a_former_version(*_: Any) -> None:
    """A level is added while the version of the combiner changes."""
