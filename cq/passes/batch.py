"""What a pass reads of its bucket, and how much of it the pass takes.

Rows are taken from the first on, up to limits: of bytes read, of what is staged for their keys, and of what writing
these keys again will cost. The row at which the limits end is taken in part; its rest stays in its place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Final

from cq.config.queue import QueueConfig, read_config
from cq.errors import CodeMismatch
from cq.keys import QueueKeys, after
from cq.passes.bucket_cache import BucketCache
from cq.passes.hash_order import is_sorted_from_cursor
from cq.passes.repacking import UPDATE_BYTES, shrinks_backlog
from cq.passes.runs import SortBacklog
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
from cq.store.write_sizes import SET_COPIES, WRITE_BYTES

_SAMPLES: Final = 500  # so many keys tell whether all are in turn


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a pass.

    With those given here a transaction has about 1 MB, unless a single key needs more: `write_bytes`, `observer_bytes`,
    and twice `load_bytes`, as both the staged updates and the values that were read may be written.

    Attributes:
        read_bytes: rows read (about; the last one may exceed it).
        load_bytes: staged updates read, and current values read (each; the last one may exceed it).
        write_bytes: bytes of keys and updates that the pass itself writes, as `cq.store.write_sizes` counts them
        (about). repack_bytes: updates that may be left as rows again (about); 0 for never.
        observer_bytes: what observers may write, as predicted from what their reports have cost so far.
        reported_bytes: bytes of the reported values, as `cq.store.write_sizes` counts them, in a queue with
        observers. A bucket
            predicts with how many of them the observers write `observer_bytes`.
        max_report: how many keys are reported.
        overload_seconds: how long a bucket may not be read to its end before a pass reports all the same.
        stale_seconds: how old a note of an attempt must be to count as that of a worker that died.
    """

    read_bytes: int = 2_000_000
    load_bytes: int = 200_000
    write_bytes: int = 400_000
    repack_bytes: int = 300_000
    observer_bytes: int = 200_000
    reported_bytes: int = 10_000_000
    max_report: int = 16_000
    overload_seconds: float = 5.0
    stale_seconds: float = 10.0

    @property
    def transaction_bytes(self) -> int:
        """About what the transaction of a pass has at most, if no single key needs more."""
        return self.write_bytes + self.observer_bytes + 2 * self.load_bytes

    def to_write(self, *, is_observed: bool) -> int:
        """`write_bytes`, and what observers may write if there are none."""
        return self.write_bytes if is_observed else self.write_bytes + self.observer_bytes


LOCAL_LIMITS: Final = Limits(
    read_bytes=8_000_000,
    load_bytes=800_000,
    write_bytes=6_300_000,
    repack_bytes=4_000_000,
    observer_bytes=2_000_000,
    max_report=50_000,
)
"""Of passes over a store on the same machine, where a worker runs one of them over a queue at a time."""


@dataclass(slots=True)
class Batch:
    """What a pass has read, and takes.

    Attributes:
        read_version: of the pass.
        state: the bucket's.
        notification: its value, None when there is none.
        backlog: all rows read.
        rows: those of them that count.
        updates: {encoded key: updates in commit order} of what is taken.
        staged: {encoded key: what is staged, encoded, or None} as far as known.
        is_former: whether the bucket is one of the shape before: later updates may wait under the shape now.
        rest: the row of which only the updates before this position are taken; all rows before it are taken.
        repack_bytes: how many bytes the updates would take as rows, about; 0 if what is folded is to be staged, and not
            to become rows again.
        staging_bytes: how many bytes staging the updates would take, about; 0 if they would become rows again.
        folds_first: whether all that is queued is to be folded before any of it is reported: somebody is told of
            changes, or folding makes so much less of what was read that it pays.
    """

    read_version: int
    state: BucketState
    notification: bytes | None
    backlog: Backlog
    rows: list[Row]
    is_former: bool = False
    updates: Updates = field(default_factory=dict)
    staged: dict[bytes, bytes | None] = field(default_factory=dict)
    rest: tuple[Row, int] | None = None
    repack_bytes: int = 0
    staging_bytes: int = 0
    folds_first: bool = True

    @property
    def at_end(self) -> bool:
        """Whether everything that was queued at the read version is taken."""
        return self.backlog.at_end and self.rest is None

    @property
    def is_complete(self) -> bool:
        """Whether everything of these keys that was committed at the read version is taken or staged."""
        return self.at_end and not self.is_former

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do but to clear the notification."""
        state = self.state
        return self.backlog.last_key is None and not state.staged and not state.unfinished_since

    def has_work(self, encoded: bytes) -> bool:
        """Whether updates of the key are taken or staged."""
        return encoded in self.updates or self.staged.get(encoded) is not None

    def is_taken(self, key: bytes) -> bool:
        """Whether a row read is taken whole."""
        return self.rest is None or key < self.rest[0].key

    @property
    def rows_taken(self) -> list[Row]:
        """The rows that count and are taken whole."""
        return [row for row in self.rows if self.is_taken(row.key)]

    @property
    def taken_bytes(self) -> int:
        """The bytes of the rows that are taken whole."""
        return sum(row.size for row in self.backlog.rows if self.is_taken(row.key))

    def repeated(self) -> list[Row]:
        """The rows that go without being combined, as an earlier transaction had added their operation."""
        return [row for row in repeated_rows(self.backlog.rows, self.rows) if self.is_taken(row.key)]


def read_batch(
    tr: Transaction,
    config: QueueConfig,
    bucket: int,
    limits: Limits,
    *,
    max_take: int | None = None,
    is_observed: bool = True,
    first: Collection[bytes] = (),
    cache: BucketCache | None = None,
    may_sort: bool = False,
) -> Batch:
    """Read a bucket, and decide what is taken of it.

    The state is read for real, all else by snapshot reads. `max_take` limits the number of different keys; what is
    staged for the keys in `first` is read before that of all others, unless it is in `memory`; `is_observed`: whether
    anybody is told of changes. Raises `CodeMismatch` when the configuration is not the one given and, if that is
    allowed, `ForRuns` for a deep backlog of many different keys.
    """
    keys = QueueKeys(config.name)
    generation = config.generation
    read_version = tr.get_read_version()
    state = tr.get(keys.state(generation, bucket))
    notification = tr.snapshot.get(keys.notification(generation, bucket))
    stored = read_config(tr, config.name)
    if config not in (stored, stored.under_former_shape()):
        raise CodeMismatch(f"the configuration of queue {config.name!r} has changed")
    version = read_version.wait()
    backlog = read_rows(tr.snapshot, keys.rows(generation, bucket), limits.read_bytes, version)
    rows = drop_repeated_operations(tr.snapshot, keys, backlog.rows)
    found = BucketState.from_bytes(state.value)
    batch = Batch(version, found, notification.value, backlog, rows, is_former=config != stored)
    _take(tr, config, batch, limits, max_take, is_observed, first, cache or BucketCache(), may_sort)
    return batch


def write_values(
    tr: Transaction, at: Sequence[bytes], values: Sequence[bytes | None], is_same: Sequence[bool]
) -> None:
    """Write the new values under some keys, encoded or None, but for those that are the same as before."""
    for key, data, same in zip(at, values, is_same, strict=True):
        if same:
            continue
        if data is None:
            tr.clear(key)
        else:
            tr.set(key, data)


def clear_rows(tr: Transaction, keys: QueueKeys, begin: bytes, batch: Batch) -> int:
    """Take away the rows that are taken, from the bucket's first key on; returns how many these were."""
    if batch.backlog.last_key is None:
        return 0
    if batch.rest is None:
        tr.clear_range(begin, after(batch.backlog.last_key))
        return len(batch.backlog.rows)
    row, position = batch.rest
    tr.clear_range(begin, row.key)
    if position:
        tr.set(row.key, encode_row(row.operation, row.updates[position:]))
    return sum(batch.is_taken(other.key) for other in batch.backlog.rows)


def _take(
    tr: Transaction,
    config: QueueConfig,
    batch: Batch,
    limits: Limits,
    max_take: int | None,
    is_observed: bool,
    first: Collection[bytes],
    cache: BucketCache,
    may_sort: bool,
) -> None:
    """Take what the limits allow; that this is all of it is the rule, and found out first."""
    keys = QueueKeys(config.name)
    backlog = batch.backlog
    updates = updates_of(backlog, batch.rows)
    batch.folds_first = is_observed
    budget = _budget(config, batch, updates, limits, max_take)
    wanted: Collection[bytes] = updates
    is_all = budget.has_room(updates, backlog.size)
    if may_sort and budget.is_of_rows and not batch.folds_first and not (is_all and backlog.at_end):
        raise SortBacklog
    if not is_all:
        wanted = budget.affordable(batch.rows, updates)
    if budget.is_of_rows:
        batch.repack_bytes = min(budget.cost(wanted, backlog.size), budget.most)
    else:
        batch.staging_bytes = min(budget.cost(wanted, backlog.size), budget.most)
    if batch.state.staged:
        order = [*first, *(encoded for encoded in wanted if encoded not in first)]
        known = cache.staged if cache.is_valid(batch.state.token) else {}
        batch.staged = read_at_hashes(tr.snapshot, keys.staged_at, order, known, limits.load_bytes)
        if len(batch.staged) < len(order):
            wanted = {encoded for encoded in wanted if encoded in batch.staged}
    if len(wanted) == len(updates):
        batch.updates = updates
    else:
        _take_until(batch, wanted)


def _take_until(batch: Batch, wanted: Collection[bytes]) -> None:
    """Take updates up to the first of another key than those wanted."""
    for row in batch.rows:
        for position, (encoded, update) in enumerate(row.updates):
            if encoded not in wanted:
                batch.rest = row, position
                return
            batch.updates.setdefault(encoded, []).append(update)


def _budget(
    config: QueueConfig, batch: Batch, updates: Updates, limits: Limits, max_take: int | None
) -> _WriteBudget:
    """What may be written for what is taken: to be staged, or as rows again where that is cheaper."""
    each = SET_COPIES * len(QueueKeys(config.name).staged(b"")) + WRITE_BYTES
    most = limits.to_write(is_observed=batch.folds_first) // 2
    staging = _WriteBudget(each, config.value.grows, most, max_take, copies=SET_COPIES)
    if not limits.repack_bytes or max_take is not None or batch.state.staged:
        return staging
    rows = _WriteBudget(UPDATE_BYTES, config.value.grows, limits.repack_bytes, is_of_rows=True)
    less = shrinks_backlog(updates)
    if less and not rows.grows and not batch.backlog.at_end and rows.has_room(updates, batch.backlog.size):
        batch.folds_first = True
        return rows
    if batch.folds_first:
        return staging
    if not less and len(updates) > limits.max_report:
        step = max(1, limits.max_report // _SAMPLES)
        if is_sorted_from_cursor(list(islice(updates, 0, limits.max_report, step)), batch.state.cursor):
            return replace(rows, max_take=limits.max_report)  # what is behind them stays as it is
    return rows


@dataclass(frozen=True, slots=True)
class _WriteBudget:
    """What may be written for the keys of some rows, about.

    A key costs its own bytes, `copies` times, and its value: of types of which values grow, as much as the updates
    that are combined in it.

    Attributes:
        each: bytes of each key besides its own.
        grows: whether values grow.
        most: bytes of all.
        max_take: how many different keys; None for as many as there are bytes for.
        is_of_rows: whether what is left becomes rows again, and is not staged.
        copies: how often the transaction has each key.
    """

    each: int
    grows: bool
    most: int
    max_take: int | None = None
    is_of_rows: bool = False
    copies: int = 1

    def cost(self, different: Collection[bytes], row_bytes: int) -> int:
        """That of these keys, of rows of so many bytes."""
        size = row_bytes if self.grows else 0
        return size + self.copies * sum(map(len, different)) + self.each * len(different)

    def has_room(self, different: Collection[bytes], row_bytes: int) -> bool:
        """Whether it is enough for these keys, of rows of so many bytes."""
        is_few = self.max_take is None or len(different) <= self.max_take
        return is_few and self.cost(different, row_bytes) <= self.most

    def affordable(self, rows: list[Row], updates: Updates) -> dict[bytes, None]:
        """The first different keys of the rows, as many as it is enough for; `updates` has all of them, in order."""
        most, max_take = self.most, self.max_take
        if not self.grows:
            sizes = list(accumulate(self.copies * len(encoded) + self.each for encoded in updates))
            number = max(1, bisect_right(sizes, most))
            return dict.fromkeys(islice(updates, number if max_take is None else min(number, max_take)))
        wanted: dict[bytes, None] = {}
        size = 0
        for row in rows:
            size += row.size
            for encoded, _ in row.updates:
                if encoded in wanted:
                    continue
                size += self.copies * len(encoded) + self.each
                if wanted and (size > most or (max_take is not None and len(wanted) >= max_take)):
                    return wanted
                wanted[encoded] = None
        return wanted
