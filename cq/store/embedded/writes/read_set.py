"""What a transaction has read, as ranges that later commits of others must not have written.

The formulas are FoundationDB's: a selector depends on the keys between where it starts and where it ends up, a range
read with a limit only on what lies up to its last row. With own writes in between, only the parts where the stored
data shows through count.
"""

from __future__ import annotations

from typing import NamedTuple

from cq.store.embedded.binding.keys import Range, after
from cq.store.embedded.writes.writes import Row, Writes

RANGE_BYTES = 24
"""What a conflict range costs beside its keys, in FoundationDB's sizes."""


class OffsetSelector(NamedTuple):
    """A key selector without `or_equal`: offset 1 is the first key at or after `key`, 0 the last one before it."""

    key: bytes
    offset: int


class RangeRead(NamedTuple):
    """A range read and its result."""

    begin: OffsetSelector
    end: OffsetSelector
    rows: list[Row]
    more: bool
    reverse: bool
    to_begin: bool
    """A selector ran into the beginning of the key space."""
    through_end: bool
    """A selector ran into its end."""
    space_end: bytes


class ReadSet:
    """The read conflict keys and ranges of one transaction."""

    __slots__ = ("_sorted", "keys", "ranges", "size")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.ranges: list[Range] = []
        self.size = 0
        self._sorted: list[bytes] = []

    def sorted_keys(self) -> list[bytes]:
        """The keys in order; nothing is added any more once this has been asked for."""
        if len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return self._sorted

    def __bool__(self) -> bool:
        return bool(self.keys or self.ranges)

    def add_key(self, key: bytes, writes: Writes | None) -> None:
        """Note a read of a key; `writes` are those that the read has seen."""
        if writes and not writes.depends(key):
            return
        self.size += 2 * len(key) + 1 + RANGE_BYTES
        self.keys.add(key)

    def add_range(self, begin: bytes, end: bytes, writes: Writes | None) -> None:
        """Note a read of [begin, end)."""
        if begin >= end:
            return
        if end == after(begin):
            self.add_key(begin, writes)
            return
        parts = writes.stored_parts(begin, end) if writes else [(begin, end)]
        self.size += (len(begin) + len(end) + RANGE_BYTES) * len(parts)
        self.ranges += parts

    def add_selector(self, key: bytes, offset: int, found: bytes, writes: Writes | None) -> None:
        """Note that a selector was resolved."""
        if offset <= 0:
            self.add_range(found, key, writes)
        else:
            self.add_range(key, after(found), writes)


def conflict_range(read: RangeRead) -> Range:
    """The range that a range read depends on."""
    begin, end, rows = read.begin, read.end, read.rows
    low, high = min(begin.key, end.key), max(begin.key, end.key)
    if begin.key < end.key and read.more:
        # What lies beyond the last row cannot change a result that stopped there.
        if read.reverse and begin.offset <= 1:
            low = end.key
        elif not read.reverse and end.offset > 0:
            high = begin.key
    if read.to_begin and begin.offset <= 0:
        low = b""
    if read.through_end and end.offset > 0:
        high = read.space_end
    if rows:
        first, last = (rows[-1][0], rows[0][0]) if read.reverse else (rows[0][0], rows[-1][0])
        if read.reverse or begin.offset <= 0:
            low = min(low, first)
        if high <= last and (not read.reverse or end.offset > 0):
            high = after(last)
    return low, high


def conflict_range_without_ryw(read: RangeRead) -> Range:
    """The same when read-your-writes is disabled, where FoundationDB computes it in another way."""
    begin, end, rows, reverse = read.begin, read.end, read.rows, read.reverse
    forward_begin = (not reverse or not read.more or begin.offset > 1) and begin.offset > 0
    forward_end = (reverse or not read.more or end.offset <= 0) and end.offset <= 1
    low, high = begin.key, end.key
    if read.to_begin:
        low = b""
    elif rows and not forward_begin:
        low = rows[-1 if reverse else 0][0]
    if end.offset > begin.offset and end.key < low:
        low = end.key
    if read.through_end:
        high = read.space_end
    elif rows and not forward_end:
        high = after(rows[0 if reverse else -1][0])
    if begin.offset < end.offset and begin.key > high:
        high = begin.key
    return low, high
