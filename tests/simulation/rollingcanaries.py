"""Variants of roll-ups that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from cq.admin import configure, levels, purge, rebucket
from cq.config.expiry import ExpirySpec
from cq.config.queue import read_config
from cq.config.rollup import RollUpLevel
from cq.config.window import milliseconds
from cq.encoding import codec
from cq.keys.expiry import pack_time
from cq.passes import batch as batches
from cq.passes import combine_pass, feeding, repacking
from cq.passes.batch import Batch
from cq.queue import adds, set_aside
from cq.queue.packing import Checked
from cq.queue.rows import Row, Updates, by_key, encode_row
from cq.store.transact import transact


def _feeds(change: Callable[[Batch], Batch]) -> Any:
    """Change what a pass adds to the levels."""
    feed = feeding.feed
    return patch.object(combine_pass, "feed", lambda tr, combiner, batch: feed(tr, combiner, change(batch)))


def _groups(change: Callable[[Any, Any, Updates], dict[int, Updates]]) -> Any:
    """Change how updates are assigned to periods."""
    return patch.object(feeding, "updates_by_period", change)


def _rests(change: Callable[[Row, int], Sequence[int]]) -> Any:
    """Change the times of a row that a pass has taken a part of; the position is that of the first update left."""

    def encoded(row: Row, positions: Sequence[int]) -> bytes:
        is_rest = positions[0] > 0
        return encode_row(row._replace(times=change(row, positions[0])) if is_rest else row, positions)

    return patch.object(batches, "encode_row", encoded)


def expires_periods_early() -> Any:
    """A period expires after half of its retention."""
    return patch.object(ExpirySpec, "latest_due", lambda self, now: int(now) - self.period // 2)


def purges_no_levels() -> Any:
    """A purge leaves the levels."""
    return patch.object(purge, "with_levels", lambda tr, config: [config])


def feeds_beside_the_pass() -> Any:
    """Levels get updates in a transaction of their own, again if the pass is tried again."""
    feed = feeding.feed

    def beside(tr: Any, combiner: Any, batch: Batch) -> None:
        transact(tr.db, lambda own: feed(own, combiner, batch))

    return patch.object(combine_pass, "feed", beside)


def loses_a_maximum_of_zero() -> Any:
    """Levels get no updates of 0."""
    combine = feeding.combined_updates

    def combined(*given: Any) -> Checked:
        pairs = [(key, value) for key, value in combine(*given).pairs if value]
        return Checked([key for key, _ in pairs], [value for _, value in pairs])

    return patch.object(feeding, "combined_updates", combined)


def feeds_again_after_a_fold() -> Any:
    """Folded updates keep the time of a row, so the next pass adds them to the levels, too."""
    repack = repacking.repack

    def keeping(folded: Mapping[bytes, bytes], rows: Sequence[Row]) -> dict[bytes, bytes]:
        times = {row.key: list(row.times[:1]) for row in rows}
        return {key: _with_time(data, times[key]) for key, data in repack(folded, rows).items()}

    return patch.object(combine_pass, "repack", keeping)


def _with_time(data: bytes, times: list[int]) -> bytes:
    operation, *pairs = codec.decode(data)
    return codec.encode([[operation, *times] if times else operation, *pairs])


def feeds_staged_updates_again() -> Any:
    """What a former pass has staged is added to the levels when it is combined, too."""

    def staged(batch: Batch) -> Batch:
        found = [(key, codec.decode(data)) for key, data in batch.staged.items() if data is not None]
        if not found:
            return batch
        now = milliseconds(None)
        rows = [
            Row(b"", codec.encode([[None, now], *chain.from_iterable(found)]), None, [now]),
            *batch.rows_with_taken(),
        ]
        return replace(batch, rows=rows, updates=by_key(rows), rest=None)

    return _feeds(staged)


def loses_the_times_of_a_rest() -> Any:
    """What remains of a row that is taken in parts has no times."""
    return _rests(lambda row, position: ())


def shifts_the_times_of_a_rest() -> Any:
    """What remains of a row that is taken in parts has the times of the first updates."""
    return _rests(
        lambda row, position: (
            row.times if len(row.times) < 2 else [*row.times[:position], *row.times][: len(row.times)]
        )
    )


def feeds_whole_rows() -> Any:
    """The levels get all updates of a row that is taken in parts, each time."""

    def rows_with_taken(self: Batch) -> list[Row]:
        return [*self.rows_taken, *([self.rest[0]] if self.rest and self.rest[1] else [])]

    return patch.object(Batch, "rows_with_taken", rows_with_taken)


def feeds_nothing_set_aside() -> Any:
    """The levels do not get what a pass sets aside."""
    return _feeds(lambda batch: _without(batch, batch.bucket.plan.rejected))


def _without(batch: Batch, keys: Collection[bytes]) -> Batch:
    """The batch without the updates of these keys."""
    rows = []
    for row in batch.rows_with_taken():
        kept = [number for number, (key, _) in enumerate(row.updates) if key not in keys]
        times = [row.times[number] for number in kept] if len(row.times) > 1 else row.times
        rows += [row._replace(value=encode_row(row, kept), times=times)] if kept else []
    return replace(batch, rows=rows, updates=by_key(rows), rest=None)


def feeds_again_at_a_retry() -> Any:
    """What was set aside has a time when it is added again."""
    write = adds.write_updates

    def timed(tr: Any, config: Any, updates: Any) -> None:
        write(tr, config, updates, times=[milliseconds(None)] if config.is_timed else ())

    return patch.object(set_aside, "write_updates", timed)


def feeds_repeated_operations() -> Any:
    """The levels get the updates of all tries of an operation."""

    def repeated(batch: Batch) -> Batch:
        found = replace(batch, rows=batch.backlog.rows)
        return replace(found, updates=by_key(found.rows_with_taken()))

    return _feeds(repeated)


def takes_periods_for_one() -> Any:
    """All that a pass takes is in the period of the first update."""
    return _groups(
        lambda periods, rows, updates: {
            next(periods.period_of(row.times[0]) for row in rows if row.times): updates
        }
    )


def feeds_other_periods() -> Any:
    """A level gets periods of half its length."""
    group = feeding.updates_by_period

    def halved(level: RollUpLevel, *given: Any) -> dict[int, Updates]:
        return group(level._replace(period=level.period // 2), *given)

    return _groups(halved)


def drops_periods_without_a_word() -> Any:
    """No one knows that updates of periods that are over were dropped."""
    return patch.object(feeding, "pack_time", lambda time: pack_time(0))


def compares_levels_from_their_first_period_on() -> Any:
    """No one knows since when there is a level."""
    return patch.object(levels, "runtime", SimpleNamespace(time=lambda: 0.0))


def leaves_levels_that_are_removed() -> Any:
    """A level that is added again has what it had before."""
    return patch.object(configure, "removed_levels", lambda *_: [])


def feeds_former_updates_to_the_present_shape() -> Any:
    """The new version of a combiner gets updates of the former one from the queue."""
    return patch.object(feeding._LevelAdder, "_level", lambda self, name: read_config(self._tr, name))


def finishes_levels_before_their_queue() -> Any:
    """The new version of a combiner begins in a level while the former one still feeds it."""
    return patch.object(rebucket, "is_fed_by_former", lambda tr, config: False)


def adds_levels_to_a_former_version() -> Any:
    """A level is added while the version of the combiner changes."""
    return patch.object(levels, "refuse_while_rebucketing", lambda config: None)


ROLLING: Final[dict[Callable[[], Any], int]] = {
    expires_periods_early: 20,
    purges_no_levels: 20,
    feeds_beside_the_pass: 20,
    loses_a_maximum_of_zero: 20,
    feeds_again_after_a_fold: 20,
    feeds_staged_updates_again: 40,
    loses_the_times_of_a_rest: 20,
    shifts_the_times_of_a_rest: 40,
    feeds_whole_rows: 60,
    feeds_nothing_set_aside: 20,
    feeds_again_at_a_retry: 20,
    feeds_repeated_operations: 20,
    takes_periods_for_one: 20,
    feeds_other_periods: 20,
    drops_periods_without_a_word: 60,
    compares_levels_from_their_first_period_on: 20,
    leaves_levels_that_are_removed: 20,
    feeds_former_updates_to_the_present_shape: 40,
    finishes_levels_before_their_queue: 60,
    adds_levels_to_a_former_version: 60,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
ONLY_ROLLING: Final[dict[Callable[[], Any], frozenset[str]]] = {
    loses_a_maximum_of_zero: frozenset(("opposite", "other times")),
    loses_the_times_of_a_rest: frozenset(("other times",)),
    shifts_the_times_of_a_rest: frozenset(("other times",)),
    feeds_whole_rows: frozenset(("other times",)),
    compares_levels_from_their_first_period_on: frozenset(("levels", "other times")),
    leaves_levels_that_are_removed: frozenset(("levels", "other times")),
    drops_periods_without_a_word: frozenset(("freezes", "deaths", "clocks differ")),
    finishes_levels_before_their_queue: frozenset(("version", "freezes")),
    adds_levels_to_a_former_version: frozenset(("version", "levels", "freezes", "rebucket")),
}
"""{canary: the only kinds that its plans have}, for those that other kinds hide."""
