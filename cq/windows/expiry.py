"""Expiry: subtracts updates from a queue's totals when they leave its window.

    1. Read the configuration and the window's lock with read conflicts: two expiries of a queue conflict with each
       other, and an expiry conflicts with a purge.
    2. Snapshot-read the due rows, from the very first, up to a limit, and keep as many as fit into one transaction.
    3. Add updates to the queue that remove them. Of an operation, only the updates of its first try count.
    4. Clear the rows read. Rows that expire at the same time are in commit order, so clearing them as one range is
       safe: a row committed later sorts after it. A range over several times could include an unread row.

Each expiry reads from the first row, so a row that is committed after its time is found by the next one. All steps are
one transaction: a retry after `commit_unknown_result` finds the rows gone. So each update expires exactly once, and its
row exists until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from cq.config.queue import QueueConfig, read_config
from cq.config.window import milliseconds
from cq.encoding.hashing import bucket_of
from cq.keys import QueueKeys, after
from cq.keys.window import WindowKeys
from cq.queue.adds import write_updates
from cq.queue.bucket_state import fresh_token
from cq.queue.limits import admitted
from cq.queue.rows import Row, UnreadableRow
from cq.queue.set_aside import set_broken_aside
from cq.queue.window_rows import ExpiringRows, read_expiring, removals, updates_that_count
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import clear_bytes, fitting, set_bytes
from cq.store.transact import transact

EXPIRE_BYTES: Final = 200_000
"""Approximate bytes of rows that one transaction expires."""
_STAMP_BYTES: Final = 16
_ERROR_BYTES: Final = 1_300
"""Maximum bytes that a row set aside takes in addition to its own."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of one transaction that expires rows.

    Attributes:
        rows: number of rows cleared.
        keys: number of keys whose totals changed.
        seconds: seconds until the next expiry: 0 if more rows may be due, else until the first row is due, at most the
            length of a slice.
    """

    rows: int
    keys: int
    seconds: float


def expire(
    db: Database, name: str, *, now: float | None = None, limit_bytes: int = EXPIRE_BYTES
) -> Expired | None:
    """Expire due rows, as many as one transaction should; returns None if the queue has no window that subtracts.

    Args:
        db: a database of either store.
        name: the queue.
        now: seconds since 1970; by default this machine's clock.
        limit_bytes: approximate bytes of rows to expire.

    Reads one row if no row is due. Raises `QueueNotConfigured`.
    """
    return transact(db, lambda tr: _expire(tr, name, milliseconds(now), limit_bytes))


def _expire(tr: Transaction, name: str, now: int, limit_bytes: int) -> Expired | None:
    config, window = read_config(tr, name), WindowKeys(name)
    if config.subtracted_window is None:
        return None
    wait = _seconds_to_next(tr.snapshot, window, config.subtracted_window.slice, now)
    if wait > 0:
        return Expired(0, 0, wait)
    lock = tr.get(window.lock)  # with a read conflict; started first, so that it costs no extra round trip
    found = _first_fitting(config, read_expiring(tr.snapshot, config, window.due_until(now), limit_bytes))
    lock.wait()
    updates = updates_that_count(tr.snapshot, QueueKeys(name), found.rows)
    keys = config.key.decode_all(list(updates)) if updates else []
    removed = {key: removals(config, key, each) for key, each in zip(keys, updates.values(), strict=True)}
    pairs = [(key, removal) for key, each in removed.items() for removal in each]
    with admitted():  # a full queue gets no fuller: the removals are combined with queued updates
        write_updates(tr, QueueKeys(name), config, pairs, None, due=None)
    set_broken_aside(tr, QueueKeys(name), found.broken)  # so that they do not block the expiry of later rows
    _clear(tr, window, found)
    # A concurrent expiry has read the lock, so only one of the two commits.
    tr.set(window.lock, fresh_token())
    return Expired(len(found.keys), len(dict(pairs)), 0.0)


def _first_fitting(config: QueueConfig, found: ExpiringRows) -> ExpiringRows:
    """The first of these rows, as many as one transaction can expire.

    A row with one update is small, but its expiry is not: it clears the row and its operation, and adds a row and a
    notification to a bucket.
    """
    queue, window = QueueKeys(config.name), WindowKeys(config.name)
    buckets = max(config.buckets, config.audit.buckets if config.audit else 0)
    each = 3 * set_bytes(queue.notification(config.generation, 0), _STAMP_BYTES)
    seen: set[int] = set()

    def cost(row: Row | UnreadableRow) -> int:
        size = clear_bytes(row.key) + len(row.value)
        if isinstance(row, UnreadableRow):
            return size + _ERROR_BYTES
        if row.operation is not None:
            size += clear_bytes(window.operation_of(row.key))
        # The removals of all rows are added together, so only the first row of a bucket pays for that bucket.
        new = {bucket_of(encoded, buckets) for encoded, _ in row.updates} - seen
        seen.update(new)
        return size + each * len(new)

    rows: list[Row | UnreadableRow] = [*found.rows, *found.broken]
    rows.sort(key=lambda row: row.key)
    if (number := fitting(map(cost, rows))) >= len(rows):
        return found
    end = rows[number].key
    return ExpiringRows(
        [row for row in found.rows if row.key < end],
        [row for row in found.broken if row.key < end],
        at_end=False,
    )


def _seconds_to_next(snapshot: TransactionRead, window: WindowKeys, step: int, now: int) -> float:
    """Seconds until the first row is due, at most the length of a slice."""
    for row in snapshot.get_range(*window.rows(), limit=1):
        return max(0, min(window.due_of(row.key) - now, step)) / 1000
    return step / 1000


def _clear(tr: Transaction, window: WindowKeys, found: ExpiringRows) -> None:
    """Clear the rows read, and the operation keys of rows with operation ids."""
    version = tr.get_read_version().wait()
    for _, group in groupby(found.keys, window.due_of):
        _clear_same_due(tr, window, list(group), version)
    for row in found.rows:
        if row.operation is not None:
            tr.clear(window.operation_of(row.key))


def _clear_same_due(tr: Transaction, window: WindowKeys, keys: Sequence[bytes], version: int) -> None:
    """Clear rows with the same due time as one range; rows that are not in commit order are cleared one by one."""
    # A row with a version after the read version was copied here. A range up to it could clear a concurrent add's row.
    others = [key for key in keys if not window.is_row(key) or window.version_of(key) > version]
    own = sorted({*keys} - {*others})
    if own:
        tr.clear_range(own[0], after(own[-1]))
    for key in others:
        tr.clear(key)
