"""Queued rows: reads of a bucket's rows, and the selection of those that count.

A row holds the updates of one transaction for one bucket (or a part of them, if they exceed 8 kB), in CBOR:
[head, encoded key, update, encoded key, update, ...]. The head is the operation id or null. In a queue with a window or
a roll-up it is [operation id or null, time in milliseconds], or has a list of times, one for each update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple

from cq.config.window import MAX_TIME_MS
from cq.encoding import codec
from cq.encoding.codec import MAX_KEY_BYTES, MAX_OPERATION_BYTES
from cq.errors import CorruptData
from cq.keys import QueueKeys, version_of
from cq.keys.queue import bucket_in, is_row, later_than, versionstamp_in
from cq.store.api import WANT_ALL, KeyValue, TransactionRead

Updates = dict[bytes, list[Any]]
"""{encoded key: updates in commit order}."""


class Row(NamedTuple):
    """One queued row.

    Attributes:
        key: its key in the store.
        value: its bytes, checked to be a row; `updates` decodes them again.
        operation: the operation id of the add, or None.
        times: the time of each of its updates in milliseconds since 1970, or one time for all; empty: none has one.
    """

    key: bytes
    value: bytes
    operation: bytes | None
    times: Sequence[int] = ()

    @classmethod
    def of(cls, key: bytes, value: bytes, head: Any) -> Row:
        """The row with this head of its content, which must be a valid one."""
        if not isinstance(head, list):
            return cls(key, value, head)
        times = head[1]
        return cls(key, value, head[0], times if isinstance(times, list) else (times,))

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key) + len(self.value)

    @property
    def versionstamp(self) -> bytes:
        """The versionstamp of the transaction that added it."""
        return QueueKeys.versionstamp_of_row(self.key)

    @property
    def updates(self) -> list[tuple[bytes, Any]]:
        """(encoded key, update) in the order of the add."""
        content = codec.decode(self.value)
        return list(zip(content[1::2], content[2::2], strict=True))


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A damaged row, or one that cq did not write: it is set aside unchanged."""

    key: bytes
    value: bytes
    error: str


@dataclass(slots=True)
class Backlog:
    """The first rows read of a bucket, their updates by key, their bytes, and whether these are all rows.

    `is_copied`: reading ended before a row that was copied from elsewhere.
    """

    rows: list[Row] = field(default_factory=list)
    broken: list[UnreadableRow] = field(default_factory=list)
    at_end: bool = True
    last_key: bytes | None = None
    is_copied: bool = False
    updates: Updates = field(default_factory=dict)
    size: int = 0


def decode_row(key: bytes, value: bytes) -> Row:
    """The row of these bytes; raises `CorruptData`."""
    return Row.of(key, value, decode_content(key, value)[0])


def decode_content(key: bytes, value: bytes) -> list[Any]:
    """[head, encoded key, update, encoded key, ...] of a row; raises `CorruptData`."""
    content = codec.decode(value)
    if not isinstance(content, list) or len(content) % 2 == 0:
        raise CorruptData(f"the queued row {key!r} holds no list of updates")
    if not _are_encoded(content[1::2]):
        raise CorruptData(f"the queued row {key!r} holds keys that are not encoded")
    if not is_head(content[0], len(content) // 2):
        raise CorruptData(f"the queued row {key!r} holds an operation id or times that are none")
    return content


def _decode_rows(found: Sequence[tuple[bytes, bytes]]) -> tuple[list[Row], Updates] | None:
    """The decoded rows and their updates by key; None if any of them is unreadable.

    For speed, each key is checked once for all its updates.
    """
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    try:
        contents = codec.decode_all([value for _, value in found])
        if set(map(type, contents)) != {list} or not all(len(content) % 2 for content in contents):
            return None
        group(contents, updates)
    except (CorruptData, TypeError):  # TypeError: an unhashable object in the place of a key
        return None
    if not all(content[0] is None or is_head(content[0], len(content) // 2) for content in contents):
        return None
    rows = [Row.of(key, value, content[0]) for (key, value), content in zip(found, contents, strict=True)]
    return (rows, dict(updates)) if _are_encoded(updates) else None


def group(contents: Iterable[list[Any]], updates: defaultdict[bytes, list[Any]]) -> None:
    """Append the updates of rows, as `decode_content` returns them, to the lists of their keys."""
    for content in contents:
        parts = iter(content)
        next(parts)
        for encoded, update in zip(parts, parts, strict=True):
            updates[encoded].append(update)


def updates_of(backlog: Backlog, rows: Sequence[Row]) -> Updates:
    """The updates by key of the backlog's rows that count; usually these are all rows."""
    return backlog.updates if len(rows) == len(backlog.rows) else by_key(rows)


def by_key(rows: Iterable[Row]) -> Updates:
    """The updates of these rows by key."""
    updates: defaultdict[bytes, list[Any]] = defaultdict(list)
    group((codec.decode(row.value) for row in rows), updates)
    return dict(updates)


def _are_encoded(keys: Collection[Any]) -> bool:
    if not keys:
        return True
    # An empty key is invalid; it sorts before all others, so `min` finds it.
    return set(map(type, keys)) == {bytes} and min(keys) != b"" and max(map(len, keys)) <= MAX_KEY_BYTES


def is_head(head: Any, updates: int) -> bool:
    """Whether this is the head of a row with a number of updates."""
    if isinstance(head, list):
        if len(head) != 2:
            return False
        operation, times = head
        given = times if isinstance(times, list) else [times]
        if len(given) not in ((1,) if given is not times else (updates,)):
            return False
        if not all(type(time) is int and abs(time) <= MAX_TIME_MS for time in given):
            return False
    else:
        operation = head
    return operation is None or (type(operation) is bytes and 0 < len(operation) <= MAX_OPERATION_BYTES)


def encode_row(row: Row, positions: Sequence[int]) -> bytes:
    """The bytes of a row with some of its updates, in their order: those that a pass has not taken."""
    updates = row.updates
    head: Any = row.operation
    if row.times:
        times = [row.times[position] for position in positions] if len(row.times) > 1 else row.times[0]
        head = [row.operation, times]
    return codec.encode([head, *chain.from_iterable(updates[position] for position in positions)])


def timed(rows: Iterable[Row]) -> Iterator[tuple[bytes, Any, int]]:
    """(encoded key, update, time) of each update that has a time, in commit order."""
    for row in rows:
        if row.times:
            times = row.times if len(row.times) > 1 else repeat(row.times[0])
            for (encoded, update), time in zip(row.updates, times, strict=False):
                yield encoded, update, time


class FoundRows(NamedTuple):
    """Undecoded rows, their bytes, and whether these are all rows.

    `is_copied`: reading ended before a row that was copied from elsewhere.
    """

    rows: list[tuple[bytes, bytes]]
    size: int
    at_end: bool
    is_copied: bool


def find_rows(
    snapshot: TransactionRead,
    begin: bytes,
    bounds: tuple[bytes, bytes],
    limit_bytes: int,
    read_version: int | None,
) -> FoundRows:
    """A bucket's rows in commit order, from `begin` on, until `limit_bytes` are exceeded.

    With a read version, reading ends before a row with a later stamp. Such a row was copied from elsewhere, and a range
    clear that includes it could also clear the row of a concurrent add.
    """
    copied = bounds[1] if read_version is None else later_than(bounds[0], read_version)
    rows: list[tuple[bytes, bytes]] = []
    size = 0
    for row in snapshot.get_range(begin, bounds[1], streaming_mode=WANT_ALL):
        if size > limit_bytes:  # checked when another row is there: `at_end` is False only if more rows exist
            return FoundRows(rows, size, at_end=False, is_copied=False)
        key, value = row.key, row.value
        if key >= copied:
            return FoundRows(rows, size, at_end=True, is_copied=True)
        size += len(key) + len(value)
        rows.append((key, value))
    return FoundRows(rows, size, at_end=True, is_copied=False)


def read_rows(
    snapshot: TransactionRead,
    bounds: tuple[bytes, bytes],
    limit_bytes: int,
    read_version: int | None = None,
) -> Backlog:
    """A bucket's first rows, decoded, and their updates by key; the limits are those of `find_rows`."""
    found = find_rows(snapshot, bounds[0], bounds, limit_bytes, read_version)
    backlog = Backlog(at_end=found.at_end, is_copied=found.is_copied)
    if found.rows:
        backlog.last_key, backlog.size = found.rows[-1][0], found.size
        _sort_broken(backlog, bounds[0], found.rows)
    return backlog


def _sort_broken(backlog: Backlog, prefix: bytes, found: Sequence[tuple[bytes, bytes]]) -> None:
    """Divide rows into readable and unreadable ones; usually all rows are readable."""
    decoded = _decode_rows(found) if all(is_row(prefix, key) for key, _ in found) else None
    if decoded is not None:
        backlog.rows, backlog.updates = decoded
        return
    for key, value in found:
        try:
            content = decode_found(prefix, key, value)
            backlog.rows.append(Row.of(key, value, content[0]))
        except CorruptData as error:
            backlog.broken.append(UnreadableRow(key, value, str(error)))
    backlog.updates = by_key(backlog.rows)


def decode_found(prefix: bytes, key: bytes, value: bytes) -> list[Any]:
    """The content of a row found below the prefix of rows; raises `CorruptData`."""
    if not is_row(prefix, key):
        raise CorruptData(f"the key {key!r} is not one of a queued row")
    return decode_content(key, value)


def drop_repeated_operations(snapshot: TransactionRead, keys: QueueKeys, rows: Sequence[Row]) -> list[Row]:
    """The rows without those of an operation that an earlier transaction added.

    An operation's first marker decides for all rows of all its tries, in all buckets. An operation without a marker was
    trimmed, and counts.
    """
    operations = {row.operation for row in rows if row.operation is not None}
    if not operations:
        return list(rows)
    first = first_tries(snapshot, keys, operations)
    return [
        row
        for row in rows
        if row.operation is None or first.get(row.operation, row.versionstamp) == row.versionstamp
    ]


def first_tries(
    snapshot: TransactionRead, keys: QueueKeys, operations: Iterable[bytes]
) -> dict[bytes, bytes]:
    """{operation: versionstamp of its first marker} of those that have a marker, read in flight together."""
    futures = {operation: snapshot.get_range(*keys.markers(operation), limit=1) for operation in operations}
    return {
        operation: keys.parse_marker(marker.key)[1]
        for operation, found in futures.items()
        for marker in found
    }


def repeated_rows(rows: Sequence[Row], counting: Sequence[Row]) -> list[Row]:
    """The rows of repeated operations: all rows not in `counting`, the result of `drop_repeated_operations`."""
    if len(counting) == len(rows):
        return []
    keys = {row.key for row in counting}
    return [row for row in rows if row.key not in keys]


def oldest_by_bucket(
    tr: TransactionRead, queue: QueueKeys, buckets: Iterable[tuple[int, int]] | None = None
) -> dict[tuple[int, int], int | None]:
    """{(generation, number): version of the oldest row, None without rows} of some buckets; None: those notified."""
    if buckets is None:
        buckets = notified(tr.get_range(*queue.notifications()), queue)
    ranges = {bucket: queue.rows(*bucket) for bucket in buckets}
    firsts = {bucket: tr.get_range(*bounds, limit=1) for bucket, bounds in ranges.items()}
    return {
        bucket: next((version_of(versionstamp_in(ranges[bucket][0], row.key)) for row in first), None)
        for bucket, first in firsts.items()
    }


def notified(notifications: Iterable[KeyValue], queue: QueueKeys) -> list[tuple[int, int]]:
    """Generation and number of the buckets with work; skips keys that cq did not write."""
    prefix = queue.notifications()[0]
    found = (bucket_in(prefix, row.key) for row in notifications)
    return [bucket for bucket in found if bucket is not None]
