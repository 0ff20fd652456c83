"""Taking out of a queue what has left its window.

    1. Read the configuration and the window's lock for real: two who take out conflict, and so do they with a purge.
    2. Snapshot-read the rows that are due, from the very first, up to a limit, and keep to those that one transaction
       takes out.
    3. Add what they sum up to to the queue, negated; of an operation, what its first try has added.
    4. Clear the rows read. Those that are due at one time lie in commit order, so one range takes them, and cannot take
       one that is committed meanwhile along: that sorts behind them. A range across several times could.

As each look begins with the very first row, one that is committed when its time is over is taken out by the next look.
All happens in one transaction: after `commit_unknown_result` it finds the rows gone. So each update is taken out
exactly once, and as long as there is one, the row is there.
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
from cq.queue.bucket_state import fresh_token
from cq.queue.combine_queue import write_updates
from cq.queue.limits import admitted
from cq.queue.rows import Row, UnreadableRow
from cq.queue.set_aside import set_aside
from cq.queue.window_rows import ExpiringRows, read_expiring, sum_up
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact
from cq.store.write_sizes import clear_bytes, fitting, set_bytes

EXPIRE_BYTES: Final = 200_000
"""How much of the rows that are due one transaction takes out, about."""
_RAW_BYTES: Final = 50_000
_STAMP_BYTES: Final = 16
_ERROR_BYTES: Final = 1_300
"""The bytes that a row set aside takes in addition to its own, at most."""


@dataclass(frozen=True, slots=True)
class Expired:
    """What one transaction has taken out.

    Attributes:
        rows: how many.
        keys: how many keys it has added to.
        seconds: when to look again: 0 when more is due, else until the first row is, or a slice's length.
    """

    rows: int
    keys: int
    seconds: float


def expire(
    db: Database, name: str, *, now: float | None = None, limit_bytes: int = EXPIRE_BYTES
) -> Expired | None:
    """Take out what is due by now, or as much of it as one transaction should; None if the queue has no window.

    Args:
        db: a database of either store.
        name: the queue.
        now: in seconds since 1970; by this machine's clock, if left out.
        limit_bytes: of rows, about.

    Costs a read of one row when nothing is due. Raises `QueueNotConfigured`.
    """
    return transact(db, lambda tr: _expire(tr, name, milliseconds(now), limit_bytes))


def _expire(tr: Transaction, name: str, now: int, limit_bytes: int) -> Expired | None:
    config, window = read_config(tr, name), WindowKeys(name)
    if config.window is None:
        return None
    wait = _until_first(tr.snapshot, window, config.window.slice, now)
    if wait > 0:
        return Expired(0, 0, wait)
    lock = tr.get(window.lock)
    found = _fitting(config, read_expiring(tr.snapshot, config, window.due_until(now), limit_bytes))
    lock.wait()
    sums = sum_up(tr.snapshot, QueueKeys(name), found.rows)
    with admitted():  # it makes a queue that is full no fuller: what is taken out is combined with what waits
        _add_negated(tr, config, sums)
    _set_broken_aside(tr, name, found)
    _clear(tr, window, found)
    tr.set(window.lock, fresh_token())
    return Expired(len(found.keys), len(sums), 0.0)


def _fitting(config: QueueConfig, found: ExpiringRows) -> ExpiringRows:
    """The first of these rows, as many as one transaction takes out.

    A row with one update is small, but taking it out is not: it clears the row and its operation, and adds a row and a
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
        own = {bucket_of(encoded, buckets) for encoded, _ in row.updates} - seen
        seen.update(own)
        return size + each * len(own)

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


def _until_first(snapshot: TransactionRead, window: WindowKeys, step: int, now: int) -> float:
    """After how many seconds to look: when the first row is due, but not later than after a slice."""
    for row in snapshot.get_range(*window.rows(), limit=1):
        return max(0, min(window.due_of(row.key) - now, step)) / 1000
    return step / 1000


def _add_negated(tr: Transaction, config: QueueConfig, sums: dict[bytes, int]) -> None:
    keys = config.key.decode_all(list(sums)) if sums else []
    negated = list(zip(keys, (-total for total in sums.values()), strict=True))
    write_updates(tr, QueueKeys(config.name), config, negated, None, due=None)


def _set_broken_aside(tr: Transaction, name: str, found: ExpiringRows) -> None:
    """Move rows that cq has not written out of the way."""
    piece = 0
    for each in found.broken:
        raw = [each.value[start : start + _RAW_BYTES] for start in range(0, len(each.value), _RAW_BYTES)]
        piece = set_aside(tr, QueueKeys(name), b"", each.error, raw or [b""], piece)


def _clear(tr: Transaction, window: WindowKeys, found: ExpiringRows) -> None:
    """Clear the rows read, and what stands for those with operation ids."""
    version = tr.get_read_version().wait()
    for _, group in groupby(found.keys, window.due_of):
        _clear_same_due(tr, window, list(group), version)
    for row in found.rows:
        if row.operation is not None:
            tr.clear(window.operation_of(row.key))


def _clear_same_due(tr: Transaction, window: WindowKeys, keys: Sequence[bytes], version: int) -> None:
    """Clear rows that are due at one time: in a range, but for those that do not lie in commit order."""
    others = [key for key in keys if not window.is_row(key) or window.version_of(key) > version]
    own = sorted({*keys} - {*others})
    if own:
        tr.clear_range(own[0], after(own[-1]))
    for key in others:
        tr.clear(key)
