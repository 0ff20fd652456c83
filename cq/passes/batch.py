"""Reads the rows of a bucket for a pass, decides what to do with them, and takes as many as the limits allow.

A pass takes rows in commit order, up to limits on the bytes read, on the staged updates of their keys, and on the cost
of writing these keys again. It takes a part of the row that reaches a limit; the remainder keeps its key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate, islice, repeat
from operator import attrgetter
from typing import Final

from cq.config.rollup import LEVEL_KEY_BYTES, RollUpLevel
from cq.config.window import WindowSpec
from cq.keys import QueueKeys, after
from cq.passes.open_bucket import OpenBucket
from cq.passes.repacking import UPDATE_BYTES, shrinks_backlog
from cq.queue.bounded_reads import read_at_hashes
from cq.queue.bucket_state import BucketState
from cq.queue.rows import (
    Backlog,
    Row,
    Updates,
    drop_repeated_operations,
    encode_row,
    read_rows,
    repeated_rows,
    updates_of,
)
from cq.store.api import Transaction
from cq.store.sizes import SET_COPIES, WRITE_BYTES

LEVEL_UPDATE_BYTES: Final = LEVEL_KEY_BYTES + UPDATE_BYTES
"""Bytes of an update of a level in addition to the encoded key of its queue, about, if it is a number."""


class Step(Enum):
    """What a pass does with the rows that it has read."""

    COMBINE = "report keys; stage the updates of all other keys taken"
    FOLD = "write the updates of all keys that are not reported as rows again"
    SORT = "write a part of the rows again, as the first sorted run of the backlog"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass does with its rows.

    Attributes:
        step: the step.
        wanted: the encoded keys whose updates it takes.
        size: the bytes of these if staged or written as rows, about.
        prefix: the updates before the first one of another key, and its place, as `_until` returns them; None: not
            known.
    """

    step: Step
    wanted: Collection[bytes]
    size: int = 0
    prefix: tuple[Updates, tuple[Row, int] | None] | None = None


@dataclass(slots=True)
class Batch:
    """The rows that a pass has read, and the updates that it takes.

    Attributes:
        bucket: the bucket, as the pass has opened it.
        notification: value of the bucket's notification, or None.
        backlog: all rows read.
        rows: these rows, without those of repeated operations.
        queued: the updates of these rows.
        updates: {encoded key: updates in commit order} taken by the pass.
        staged: {encoded key: staged updates, encoded, or None} as far as they were read or cached.
        rest: a row and a position in it: the pass takes its updates before the position, and all rows before it.
        decision: what the pass does with the rows.
    """

    bucket: OpenBucket
    notification: bytes | None
    backlog: Backlog
    rows: list[Row]
    queued: Updates
    updates: Updates = field(default_factory=dict)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    rest: tuple[Row, int] | None = None
    decision: Decision = Decision(Step.COMBINE, ())

    @property
    def finest_periods(self) -> RollUpLevel | WindowSpec | None:
        """The shortest periods of the queue's levels; None without levels."""
        periods = [each for each in self.bucket.config.fed.values() if each is not None]
        return min(periods, key=attrgetter("step"), default=None)

    @property
    def levels(self) -> int:
        """The number of levels to add updates to; 0 if no row has a time, as folded updates are in the levels."""
        fed = self.bucket.config.fed
        return len(fed) if fed and any(row.times for row in self.rows) else 0

    @property
    def state(self) -> BucketState:
        """The bucket's state."""
        return self.bucket.state

    @property
    def at_end(self) -> bool:
        """Whether the pass takes every row queued at the read version."""
        return self.backlog.at_end and self.rest is None

    @property
    def is_complete(self) -> bool:
        """Whether every update of these keys committed at the read version is taken or staged."""
        return self.at_end and not self.bucket.is_former

    @property
    def folds_first(self) -> bool:
        """Whether to fold the whole backlog before reporting any of it."""
        return self.bucket.code.is_heard or self.decision.step is Step.FOLD

    @property
    def is_empty(self) -> bool:
        """Whether the bucket has no work: the pass only clears the notification."""
        state = self.state
        return self.backlog.last_key is None and not state.staged and not state.unfinished_since

    def has_work(self, encoded: bytes) -> bool:
        """Whether the key has taken or staged updates."""
        return encoded in self.updates or self.staged.get(encoded) is not None

    def is_taken(self, key: bytes) -> bool:
        """Whether the pass takes the whole row with this key."""
        return self.rest is None or key < self.rest[0].key

    @property
    def rows_taken(self) -> list[Row]:
        """The rows that the pass takes whole, without those of repeated operations."""
        return [row for row in self.rows if self.is_taken(row.key)]

    def rows_with_taken(self) -> list[Row]:
        """The rows with taken updates, each with just these, without those of repeated operations."""
        rows = self.rows_taken
        if self.rest is None or not self.rest[1]:
            return rows
        row, position = self.rest
        times = row.times[:position] if len(row.times) > 1 else row.times
        return [*rows, row._replace(value=encode_row(row, range(position)), times=times)]

    @property
    def taken_bytes(self) -> int:
        """The bytes of all rows that the pass takes whole."""
        return sum(row.size for row in self.backlog.rows if self.is_taken(row.key))

    def repeated(self) -> list[Row]:
        """Return the rows to clear without combining them, as an earlier transaction has added their operation."""
        return [row for row in repeated_rows(self.backlog.rows, self.rows) if self.is_taken(row.key)]


def read_batch(bucket: OpenBucket) -> Batch:
    """Read a bucket's first rows."""
    snapshot, keys, config = bucket.tr.snapshot, bucket.keys, bucket.config
    notification = snapshot.get(keys.notification(config.generation, bucket.number))
    backlog = read_rows(snapshot, bucket.rows, bucket.plan.limits.read_bytes, bucket.read_version)
    rows = drop_repeated_operations(snapshot, keys, backlog.rows)
    return Batch(bucket, notification.value, backlog, rows, updates_of(backlog, rows))


def decide(batch: Batch, *, may_sort: bool) -> Decision:
    """Decide what to do with the rows read.

    Usually a pass can write all of their keys. It folds a backlog that becomes far smaller, or that must be reported
    as a whole. It sorts any other backlog that it cannot combine completely, if no observer receives changes of it.
    """
    plan, queued, size = batch.bucket.plan, batch.queued, batch.backlog.size
    budget = _write_budget(batch)
    cost = budget.cost(queued, size)
    is_all = cost <= budget.most and budget.is_few(queued)
    # Staged updates are older than all rows: as long as there are any, no update becomes a row.
    is_plain = plan.max_take is None and plan.limits.repack_bytes and not batch.state.staged
    if is_plain and not (is_all and batch.backlog.at_end):
        fold = _decide_to_fold(batch)
        if fold is not None:
            return fold
        if may_sort and not batch.bucket.is_observed:
            return Decision(Step.SORT, ())
    if is_all:
        return Decision(Step.COMBINE, queued, cost)
    wanted = budget.affordable(batch.rows, queued)
    return Decision(Step.COMBINE, wanted, min(budget.cost(wanted, size), budget.most))


def take(batch: Batch, decision: Decision) -> None:
    """Take the updates of the wanted keys, as far as their staged updates can be read within the limits."""
    bucket, wanted = batch.bucket, decision.wanted
    batch.decision = decision
    if batch.state.staged:
        first = (
            bucket.plan.rejected
        )  # their staged updates are set aside even if none of their updates is taken
        order = [*first, *(encoded for encoded in wanted if encoded not in first)]
        known = bucket.cache.staged if bucket.is_cached else {}
        load = bucket.plan.limits.load_bytes
        batch.staged = read_at_hashes(bucket.tr.snapshot, bucket.keys.staged_at, order, known, load)
        if len(batch.staged) < len(order):
            # Staged updates are older than the rows: a key must not be taken without them.
            wanted = {encoded for encoded in wanted if encoded in batch.staged}
    cut = _cut_by_periods(batch, decision)
    if cut is None and decision.prefix is not None:
        batch.updates, batch.rest = decision.prefix
    elif cut is not None or len(wanted) < len(batch.queued):
        batch.updates, batch.rest = _until(batch.rows, wanted, cut)
    else:
        batch.updates = batch.queued


def write_values(
    tr: Transaction, at: Sequence[bytes], values: Sequence[bytes | None], is_same: Sequence[bool]
) -> None:
    """Set each changed key to its new encoded value, or clear it if it has no value now."""
    for key, data, same in zip(at, values, is_same, strict=True):
        if same:
            continue
        if data is None:
            tr.clear(key)
        else:
            tr.set(key, data)


def clear_rows(tr: Transaction, keys: QueueKeys, begin: bytes, batch: Batch) -> int:
    """Clear the taken rows, from the bucket's first key on; return their number."""
    if batch.backlog.last_key is None:
        return 0
    if batch.rest is None:
        # End at the last row read, not at the end of the bucket: a row committed later sorts after it and must stay.
        tr.clear_range(begin, after(batch.backlog.last_key))
        return len(batch.backlog.rows)
    row, position = batch.rest
    tr.clear_range(begin, row.key)
    if position:
        tr.set(row.key, encode_row(row, range(position, len(row.updates))))
    return sum(batch.is_taken(other.key) for other in batch.backlog.rows)


def _until(
    rows: Sequence[Row], wanted: Collection[bytes], cut: tuple[Row, int] | None = None
) -> tuple[Updates, tuple[Row, int] | None]:
    """The updates up to the first one of a key not in `wanted`, or up to a row and a position in it; and which it is.

    They are a prefix of the backlog, so that one range clear removes their rows.
    """
    found: Updates = {}
    for row in rows:
        end = cut[1] if cut is not None and row is cut[0] else None
        for position, (encoded, update) in enumerate(row.updates[:end]):
            if encoded not in wanted:
                return found, (row, position)
            found.setdefault(encoded, []).append(update)
        if end is not None:
            return found, cut
    return found, None


def _cut_by_periods(batch: Batch, decision: Decision) -> tuple[Row, int] | None:
    """The row and the position up to which the updates are of few enough periods of the queue's levels; None: all."""
    periods = batch.finest_periods
    if periods is None:
        return None
    most = _most_periods(batch, decision)
    if sum(map(len, batch.queued.values())) <= most:
        return None
    times = [time for row in batch.rows for time in row.times]
    if not times or periods.period_of(min(times)) == periods.period_of(max(times)):
        return None
    seen: set[tuple[bytes, int]] = set()
    for row in batch.rows:
        each_time = row.times if len(row.times) > 1 else repeat(*row.times or (0,))
        for position, ((encoded, _), time) in enumerate(zip(row.updates, each_time, strict=False)):
            seen.add((encoded, periods.period_of(time)))
            if len(seen) > most:
                return row, position
    return None


def _most_periods(batch: Batch, decision: Decision) -> int:
    """The maximum number of keys and periods of a level that a pass may add to the levels.

    The decision counts one period of each key.
    """
    limits = batch.bucket.plan.limits
    longest = max(map(len, batch.queued), default=0)
    number = sum(map(len, batch.queued.values())) or 1
    each = max(
        longest + LEVEL_UPDATE_BYTES, batch.backlog.size // number
    )  # an int can have thousands of digits
    room = max(0, limits.to_write(is_observed=False) - decision.size)
    return max(1, len(decision.wanted) + room // (len(batch.bucket.config.fed) * each))


def _decide_to_fold(batch: Batch) -> Decision | None:
    """Decide which updates to fold and write as rows again; None: folding is useless, or there is no room.

    Folding must make the updates far fewer, or they must be the whole backlog of a queue whose changes are heard: such
    a backlog may be reported only in passes that take all of it.
    """
    queued, config = batch.queued, batch.bucket.config
    is_useful = shrinks_backlog(queued) or (batch.bucket.code.is_heard and batch.backlog.at_end)
    rows = _WriteBudget(UPDATE_BYTES, grown=0, most=batch.bucket.plan.limits.repack_bytes)
    if not is_useful or config.value.grows or not rows.has_room(queued):
        return None
    budget = _fold_budget(batch)
    if budget.has_room(queued):
        return Decision(Step.FOLD, queued, budget.cost(queued))
    some = budget.affordable(batch.rows, queued)
    prefix = _until(batch.rows, some)
    if not shrinks_backlog(prefix[0]):
        return None  # the rows that they came from have no room for them, and the pass would stage them
    return Decision(Step.FOLD, some, budget.cost(some), prefix)


def _fold_budget(batch: Batch) -> _WriteBudget:
    """Return the budget for folded updates, in rows and in levels; values of their type do not grow."""
    levels, most = batch.levels, batch.bucket.plan.limits.to_write(is_observed=batch.bucket.is_observed)
    return _WriteBudget(UPDATE_BYTES + levels * LEVEL_UPDATE_BYTES, grown=0, most=most, copies=1 + levels)


def _write_budget(batch: Batch) -> _WriteBudget:
    """Return the budget for staging the updates, or in a bucket that needs no staging, for writing their values."""
    bucket, plan, levels = batch.bucket, batch.bucket.plan, batch.levels
    grown = (1 + levels) if bucket.config.value.grows else 0
    most = plan.limits.to_write(is_observed=bucket.is_observed)
    if bucket.code.is_heard or batch.state.staged or not plan.most_reported:
        each = SET_COPIES * len(bucket.keys.staged(b"")) + WRITE_BYTES
        each += levels * LEVEL_UPDATE_BYTES
        return _WriteBudget(each, grown, most // 2, plan.max_take, copies=SET_COPIES + levels)
    copies, each = bucket.value_cost
    copies, each = copies + levels, each + levels * LEVEL_UPDATE_BYTES
    if bucket.is_observed:  # take no more keys than can be reported: others would have to be staged
        most = min(most, plan.limits.reported_bytes)
    max_take = plan.most_reported if plan.max_take is None else min(plan.max_take, plan.most_reported)
    return _WriteBudget(each, grown, most, max_take, copies=copies)


@dataclass(frozen=True, slots=True)
class _WriteBudget:
    """A bound on the bytes that a pass writes for the keys of some rows, about.

    A key costs its own bytes, `copies` times, and its value. Values of a type that grows cost as much as the
    updates combined in them.

    Attributes:
        each: bytes of each key in addition to the encoded key.
        grown: how often the bytes of the updates are written, in the value and in levels; 0 if values do not grow.
        most: bytes in all.
        max_take: number of different keys; None: no limit except `most`.
        copies: number of copies of each key in the transaction.
    """

    each: int
    grown: int
    most: int
    max_take: int | None = None
    copies: int = 1

    def cost(self, different: Collection[bytes], row_bytes: int = 0) -> int:
        """Return the bytes for these keys, from rows of `row_bytes`."""
        return self.grown * row_bytes + self.copies * sum(map(len, different)) + self.each * len(different)

    def has_room(self, different: Collection[bytes], row_bytes: int = 0) -> bool:
        """Whether the budget suffices for these keys, from rows of `row_bytes`."""
        return self.is_few(different) and self.cost(different, row_bytes) <= self.most

    def is_few(self, different: Collection[bytes]) -> bool:
        """Whether these keys are at most `max_take`."""
        return self.max_take is None or len(different) <= self.max_take

    def affordable(self, rows: list[Row], updates: Updates) -> dict[bytes, None]:
        """Return the first different keys of the rows that the budget suffices for; `updates` has all, in order."""
        most, max_take = self.most, self.max_take
        if not self.grown:
            sizes = list(accumulate(self.copies * len(encoded) + self.each for encoded in updates))
            number = max(1, bisect_right(sizes, most))
            return dict.fromkeys(islice(updates, number if max_take is None else min(number, max_take)))
        wanted: dict[bytes, None] = {}
        size = 0
        for row in rows:
            size += self.grown * row.size
            for encoded, _ in row.updates:
                if encoded in wanted:
                    continue
                size += self.copies * len(encoded) + self.each
                if wanted and (size > most or (max_take is not None and len(wanted) >= max_take)):
                    return wanted
                wanted[encoded] = None
        return wanted
