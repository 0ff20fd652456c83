"""Reads the rows of a bucket for a pass, and takes as many of them as the limits allow.

A pass takes rows in commit order, up to limits on the bytes read, on the staged updates of their keys, and on the cost
of writing these keys again. It takes a part of the row that reaches a limit; the remainder keeps its key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Final

from cq.config.queue import QueueConfig, read_config
from cq.errors import CodeMismatch
from cq.keys import QueueKeys, after
from cq.passes.bucket_cache import BucketCache
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a pass.

    With the defaults a transaction has about 1 MB, unless a single key needs more: `write_bytes`, `observer_bytes`,
    and twice `load_bytes`, as the pass may write both the staged updates and the values that it has read.

    Attributes:
        read_bytes: bytes of rows to read, about; the last row may exceed it.
        load_bytes: bytes of staged updates to read, and of current values; the last one of each may exceed it.
        write_bytes: bytes of keys and updates that the pass itself writes, about, as `cq.store.write_sizes` counts.
        repack_bytes: bytes of updates to write as rows again, folded or sorted in a run, about; 0: never do so.
        observer_bytes: bytes that observers may write, predicted from the cost of earlier reports.
        reported_bytes: bytes of the reported values in a queue with observers, as `cq.store.write_sizes` counts.
            The caller predicts the number with which observers write `observer_bytes`.
        max_report: number of keys to report.
        overload_seconds: seconds after which passes report although they never read the rows to their end.
        stale_seconds: age from which a note of an attempt counts as left by a dead worker.
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
        """The maximum size of a pass's transaction, about, if no single key needs more."""
        return self.write_bytes + self.observer_bytes + 2 * self.load_bytes

    def to_write(self, *, is_observed: bool) -> int:
        """Return `write_bytes`, plus the share of the observers in a queue without observers."""
        return self.write_bytes if is_observed else self.write_bytes + self.observer_bytes


LOCAL_LIMITS: Final = Limits(
    read_bytes=8_000_000,
    load_bytes=800_000,
    write_bytes=6_300_000,
    repack_bytes=4_000_000,
    observer_bytes=2_000_000,
    max_report=50_000,
)
"""Limits for a store on the same machine, where a worker runs one pass over a queue at a time."""


@dataclass(slots=True)
class Batch:
    """The rows that a pass has read, and the updates that it takes.

    Attributes:
        read_version: the read version of the pass.
        state: the bucket's state.
        notification: value of the bucket's notification, or None.
        backlog: all rows read.
        rows: these rows, without those of repeated operations.
        updates: {encoded key: updates in commit order} taken by the pass.
        staged: {encoded key: staged updates, encoded, or None} as far as they were read or cached.
        is_former: whether the bucket is of the queue's former shape; the current one may then have later updates.
        rest: a row and a position in it: the pass takes its updates before the position, and all rows before it.
        repack_bytes: bytes of the updates if written as rows again, about; 0: folded updates are staged.
        staging_bytes: bytes of the updates if staged, about; 0: folded updates become rows again.
        folds_first: whether to fold the whole backlog before reporting any of it: true if the queue has observers, or
            if folding shrinks the backlog enough.
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
        """Whether the pass takes every row queued at the read version."""
        return self.backlog.at_end and self.rest is None

    @property
    def is_complete(self) -> bool:
        """Whether every update of these keys committed at the read version is taken or staged."""
        return self.at_end and not self.is_former

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

    @property
    def taken_bytes(self) -> int:
        """The bytes of all rows that the pass takes whole."""
        return sum(row.size for row in self.backlog.rows if self.is_taken(row.key))

    def repeated(self) -> list[Row]:
        """Return the rows to clear without combining them, as an earlier transaction has added their operation."""
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
    """Read a bucket's rows and take as many as the limits allow.

    Args:
        tr: the transaction of the pass.
        config: the configuration that the worker has.
        bucket: number of the bucket.
        limits: the limits of the pass.
        max_take: number of different keys, at most; None: no limit.
        is_observed: whether the queue has observers.
        first: encoded keys whose staged updates are read before those of all other keys, unless `cache` has them.
        cache: the worker's cache of the bucket.
        may_sort: whether to raise `SortBacklog`.

    Raises:
        CodeMismatch: the stored configuration is another one.
        SortBacklog: the bucket has a deep backlog of many different keys.
    """
    keys = QueueKeys(config.name)
    generation = config.generation
    read_version = tr.get_read_version()
    # Only this read and that of the configuration conflict: adds to the bucket do not abort the pass.
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
    """Take as many updates as the limits allow; first check for the usual case, all of them."""
    keys = QueueKeys(config.name)
    backlog = batch.backlog
    updates = updates_of(backlog, batch.rows)
    batch.folds_first = is_observed
    wanted: Collection[bytes] = updates
    budget = _write_budget(config, batch, limits, max_take)
    is_all = budget.has_room(updates, backlog.size)
    is_plain = max_take is None and limits.repack_bytes and not batch.state.staged
    if is_plain and not (is_all and backlog.at_end):
        if _folds_into_rows(config, batch, updates, limits):
            batch.folds_first, is_all = True, True
            batch.repack_bytes = _row_budget(limits).cost(updates)
        elif may_sort and not batch.folds_first:
            raise SortBacklog
    if not is_all:
        wanted = budget.affordable(batch.rows, updates)
    batch.staging_bytes = min(budget.cost(wanted, backlog.size), budget.most)
    if batch.state.staged:
        order = [*first, *(encoded for encoded in wanted if encoded not in first)]
        known = cache.staged if cache.is_valid(batch.state.token) else {}
        batch.staged = read_at_hashes(tr.snapshot, keys.staged_at, order, known, limits.load_bytes)
        if len(batch.staged) < len(order):
            # Staged updates are older than the rows: a key must not be taken without them.
            wanted = {encoded for encoded in wanted if encoded in batch.staged}
    if len(wanted) == len(updates):
        batch.updates = updates
    else:
        _take_until(batch, wanted)


def _take_until(batch: Batch, wanted: Collection[bytes]) -> None:
    """Take updates up to the first one of a key not in `wanted`.

    The taken updates are a prefix of the backlog, so that one range clear removes their rows.
    """
    for row in batch.rows:
        for position, (encoded, update) in enumerate(row.updates):
            if encoded not in wanted:
                batch.rest = row, position
                return
            batch.updates.setdefault(encoded, []).append(update)


def _folds_into_rows(config: QueueConfig, batch: Batch, updates: Updates, limits: Limits) -> bool:
    """Whether to write the folded updates as rows again.

    Folding must make them far fewer, or they must be the whole backlog of a queue with observers: such a backlog may be
    reported only in passes that take all of it.
    """
    is_useful = shrinks_backlog(updates) or (batch.folds_first and batch.backlog.at_end)
    return is_useful and not config.value.grows and _row_budget(limits).has_room(updates)


def _row_budget(limits: Limits) -> _WriteBudget:
    """Return the budget for writing folded updates as rows again; values of their type do not grow."""
    return _WriteBudget(UPDATE_BYTES, grows=False, most=limits.repack_bytes)


def _write_budget(config: QueueConfig, batch: Batch, limits: Limits, max_take: int | None) -> _WriteBudget:
    """Return the budget for staging the updates, or in a bucket that needs no staging, for writing their values."""
    queue, grows = QueueKeys(config.name), config.value.grows
    most = limits.to_write(is_observed=batch.folds_first)
    if batch.folds_first or batch.state.staged or not limits.max_report:
        each = SET_COPIES * len(queue.staged(b"")) + WRITE_BYTES
        return _WriteBudget(each, grows, most // 2, max_take, copies=SET_COPIES)
    each = SET_COPIES * len(queue.value(b"")) + WRITE_BYTES
    most_keys = limits.max_report if max_take is None else min(max_take, limits.max_report)
    return _WriteBudget(each, grows, most, most_keys, copies=SET_COPIES)


@dataclass(frozen=True, slots=True)
class _WriteBudget:
    """A bound on the bytes that a pass writes for the keys of some rows, about.

    A key costs its own bytes, `copies` times, and its value. Values of a type that grows cost as much as the
    updates combined in them.

    Attributes:
        each: bytes of each key in addition to the encoded key.
        grows: whether the size of values grows with the updates.
        most: bytes in all.
        max_take: number of different keys; None: no limit except `most`.
        copies: number of copies of each key in the transaction.
    """

    each: int
    grows: bool
    most: int
    max_take: int | None = None
    copies: int = 1

    def cost(self, different: Collection[bytes], row_bytes: int = 0) -> int:
        """Return the bytes for these keys, from rows of `row_bytes`."""
        size = row_bytes if self.grows else 0
        return size + self.copies * sum(map(len, different)) + self.each * len(different)

    def has_room(self, different: Collection[bytes], row_bytes: int = 0) -> bool:
        """Whether the budget suffices for these keys, from rows of `row_bytes`."""
        is_few = self.max_take is None or len(different) <= self.max_take
        return is_few and self.cost(different, row_bytes) <= self.most

    def affordable(self, rows: list[Row], updates: Updates) -> dict[bytes, None]:
        """Return the first different keys of the rows that the budget suffices for; `updates` has all, in order."""
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
