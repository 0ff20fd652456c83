"""What is to leave a queue's window: rows written by adds, in the order in which they are due.

An add to a queue with a window writes its updates twice in one transaction: into the queue, as always, and into rows
under the time at which they leave the window, which `cq.windows.expiry` takes out of the queue again then. Both
writes are
blind. Rows are kept by when they leave and not by when they came, so that each keeps its time when the width changes.
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
"""How much that is due and not taken out yet a read subtracts at most."""


def pack_expiring(pairs: Sequence[tuple[bytes, int]], operation: bytes | None) -> list[bytes]:
    """The rows of these updates: [operation id or null, encoded key, update, ...], of about 8 kB at most.

    Raises `InvalidData` for an update beyond 64 bits: sums of updates must fit into one.
    """
    for _, update in pairs:
        if not is_int64(update):
            raise InvalidData(f"expected updates of a window within 64 bits, got: {codec.shown(update)}")
    return split([operation, *chain.from_iterable(pairs)]) if pairs else []


def write_expiring(
    tr: Transaction, name: str, rows: Iterable[bytes], due: int, counters: Iterable[int], *, once: bool
) -> None:
    """Write rows that are due at a time; with operation ids, also what stands for each in commit order."""
    window = WindowKeys(name)
    for row, counter in zip(rows, counters, strict=False):  # the counters never end
        tr.set_versionstamped_key(window.new_row(due, counter), row)
        if once:
            tr.set_versionstamped_key(window.new_operation(counter), b"")


@dataclass(slots=True)
class ExpiringRows:
    """Rows that are due, in the order of that; those that cq has not written; and whether there were no more."""

    rows: list[Row] = field(default_factory=list)
    broken: list[UnreadableRow] = field(default_factory=list)
    at_end: bool = True

    @property
    def keys(self) -> list[bytes]:
        """The keys of all of them, in order."""
        return sorted([*(row.key for row in self.rows), *(each.key for each in self.broken)])


def read_expiring(
    snapshot: TransactionRead, config: QueueConfig, bounds: tuple[bytes, bytes], limit_bytes: int
) -> ExpiringRows:
    """The rows of a range, until `limit_bytes` are exceeded."""
    window, found, size = WindowKeys(config.name), ExpiringRows(), 0
    for stored in snapshot.get_range(*bounds, streaming_mode=WANT_ALL):
        if size > limit_bytes:
            found.at_end = False
            break
        size += len(stored.key) + len(stored.value)
        try:
            if not window.is_row(stored.key):
                raise CorruptData(f"the key {stored.key!r} is not one of a row that is to leave a window")
            content = decode_content(stored.key, stored.value)
            _check(config, content)
            found.rows.append(Row(stored.key, stored.value, content[0]))
        except CorruptData as error:
            found.broken.append(UnreadableRow(stored.key, stored.value, str(error)))
    return found


def _check(config: QueueConfig, content: list[Any]) -> None:
    """Raises `CorruptData` unless a row holds ints of keys of the queue."""
    if not all(type(update) is int for update in content[2::2]):
        raise CorruptData("a row that is to leave a window holds updates that are not of int")
    if len(content) > 1:
        config.key.decode_all(content[1::2])


def sum_up(snapshot: TransactionRead, queue: QueueKeys, rows: Sequence[Row]) -> dict[bytes, int]:
    """{encoded key: sum} of the updates that count: of an operation, those of its first try alone."""
    updates = by_key(drop_repeated_operations(snapshot, queue, rows))
    return {encoded: total for encoded, values in updates.items() if (total := sum(values))}


def read_overdue(snapshot: TransactionRead, config: QueueConfig, now: int) -> dict[bytes, int]:
    """{encoded key: sum} of what is due by a time and not taken out yet; mostly there is nothing.

    Raises `BacklogTooDeep` when that is more than 1 MB.
    """
    found = read_expiring(snapshot, config, WindowKeys(config.name).due_until(now), OVERDUE_BYTES)
    if not found.at_end:
        raise BacklogTooDeep(
            f"more than {OVERDUE_BYTES:,} bytes of updates are to be taken out of the window of queue {config.name!r}: "
            "run workers"
        )
    return sum_up(snapshot, QueueKeys(config.name), found.rows)
