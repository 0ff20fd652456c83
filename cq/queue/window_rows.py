"""Rows of a queue's window: updates that expire later, in the order of their expiry.

An add to a queue with a window writes its updates twice in one transaction: into the queue, and into rows under the
time when they leave the window. `cq.windows.expiry` subtracts them at that time. Both writes are blind. The rows are
sorted by the time of expiry, not of the add, so that each row keeps its time when the width changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.codec import is_int64
from cq.errors import BacklogTooDeep, CorruptData, InvalidData
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.queue.packing import split
from cq.queue.rows import Row, UnreadableRow, by_key, decode_content, drop_repeated_operations
from cq.store.api import WANT_ALL, Transaction, TransactionRead

OVERDUE_BYTES: Final = 1_000_000
"""Maximum bytes of overdue rows that a read subtracts."""


def pack_expiring(pairs: Sequence[tuple[bytes, int]], operation: bytes | None) -> list[bytes]:
    """The rows of these updates: [operation id or null, encoded key, update, ...], each of at most about 8 kB.

    Raises `InvalidData` for an update beyond 64 bits: the sum of expired updates must be a valid update.
    """
    for _, update in pairs:
        if not is_int64(update):
            raise InvalidData(f"expected updates of a window within 64 bits, got: {codec.shown(update)}")
    return split([operation, *chain.from_iterable(pairs)]) if pairs else []


def write_expiring(
    tr: Transaction, name: str, rows: Iterable[bytes], due: int, counters: Iterable[int], *, once: bool
) -> None:
    """Write rows that are due at a time; with `once`, also a key in commit order for each row's operation id."""
    window = WindowKeys(name)
    for row, counter in zip(rows, counters, strict=False):  # the counters never end
        tr.set_versionstamped_key(window.new_row(due, counter), row)
        if once:
            tr.set_versionstamped_key(window.new_operation(counter), b"")


@dataclass(slots=True)
class ExpiringRows:
    """Due rows in the order of their time, unreadable rows, and whether these are all rows of the range."""

    rows: list[Row] = field(default_factory=list)
    broken: list[UnreadableRow] = field(default_factory=list)
    at_end: bool = True

    @property
    def keys(self) -> list[bytes]:
        """The keys of all readable and unreadable rows, in order."""
        return sorted([*(row.key for row in self.rows), *(each.key for each in self.broken)])


def read_expiring(
    snapshot: TransactionRead, config: QueueConfig, bounds: tuple[bytes, bytes], limit_bytes: int
) -> ExpiringRows:
    """The rows of a range, until their bytes exceed `limit_bytes`."""
    window, found, size = WindowKeys(config.name), ExpiringRows(), 0
    for stored in snapshot.get_range(*bounds, streaming_mode=WANT_ALL):
        if size > limit_bytes:
            found.at_end = False
            break
        size += len(stored.key) + len(stored.value)
        try:
            if not window.is_row(stored.key):
                raise CorruptData(f"the key {stored.key!r} is not one of a window's row")
            content = decode_content(stored.key, stored.value)
            _check(config, content)
            found.rows.append(Row(stored.key, stored.value, content[0]))
        except CorruptData as error:
            found.broken.append(UnreadableRow(stored.key, stored.value, str(error)))
    return found


def _check(config: QueueConfig, content: list[Any]) -> None:
    """Raise `CorruptData` unless a row holds ints under keys of the queue's type."""
    if not all(type(update) is int for update in content[2::2]):
        raise CorruptData("a window's row holds updates that are not ints")
    if len(content) > 1:
        config.key.decode_all(content[1::2])


def sum_up(snapshot: TransactionRead, queue: QueueKeys, rows: Sequence[Row]) -> dict[bytes, int]:
    """{encoded key: sum} of the updates that count: of an operation, only those of its first try."""
    updates = by_key(drop_repeated_operations(snapshot, queue, rows))
    return {encoded: total for encoded, values in updates.items() if (total := sum(values))}


def read_overdue(snapshot: TransactionRead, config: QueueConfig, now: int) -> dict[bytes, int]:
    """{encoded key: sum} of the overdue rows: due by `now`, and not expired yet; usually there are few or no rows.

    Raises `BacklogTooDeep` if they exceed 1 MB.
    """
    found = read_expiring(snapshot, config, WindowKeys(config.name).due_until(now), OVERDUE_BYTES)
    if not found.at_end:
        raise BacklogTooDeep(
            f"more than {OVERDUE_BYTES:,} bytes of updates are overdue in the window of queue {config.name!r}: "
            "run workers"
        )
    return sum_up(snapshot, QueueKeys(config.name), found.rows)
