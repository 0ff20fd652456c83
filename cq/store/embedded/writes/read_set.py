"""The read conflict ranges of a transaction: its commit fails if another transaction wrote into them.

The formulas are FoundationDB's. A selector depends on the keys between its start and its result. A range read with a
limit depends on the range up to its last row. Where the transaction's own writes hide the stored rows, there is no
conflict.
"""

from __future__ import annotations

from typing import NamedTuple

from cq.store.embedded.binding.keys import Range, Row, after
from cq.store.embedded.writes.writes import Writes

RANGE_BYTES = 24
"""The size of a conflict range without its keys, as FoundationDB counts it."""


class OffsetSelector(NamedTuple):
    """A key selector without `or_equal`: offset 1 is the first key at or after `key`, 0 the last key before it."""

    key: bytes
    offset: int


class RangeRequest(NamedTuple):
    """A request for one piece of a range."""

    begin: OffsetSelector
    end: OffsetSelector
    limit: int
    """The maximum number of rows; 0: all."""
    reverse: bool
    mode: int
    """One of the binding's streaming modes."""
    iteration: int = 1


class ReadSet:
    """The read conflict keys and ranges of one transaction."""

    __slots__ = ("_sorted", "keys", "ranges", "size")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.ranges: list[Range] = []
        self.size = 0
        self._sorted: list[bytes] = []

    def sorted_keys(self) -> list[bytes]:
        """The keys, sorted. Cached: the caller must not add keys after the first call."""
        if len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return self._sorted

    def __bool__(self) -> bool:
        return bool(self.keys or self.ranges)

    def add_key(self, key: bytes, writes: Writes | None) -> None:
        """Add a read of a key; `writes` are the own writes visible to the read."""
        if writes and not writes.depends(key):
            return
        self.size += 2 * len(key) + 1 + RANGE_BYTES
        self.keys.add(key)

    def add_range(self, begin: bytes, end: bytes, writes: Writes | None) -> None:
        """Add a read of [begin, end)."""
        if begin >= end:
            return
        if end == after(begin):
            self.add_key(begin, writes)
            return
        parts = writes.stored_parts(begin, end) if writes else [(begin, end)]
        self.size += (len(begin) + len(end) + RANGE_BYTES) * len(parts)
        self.ranges += parts

    def add_selector(self, key: bytes, offset: int, found: bytes, writes: Writes | None) -> None:
        """Add the resolution of a selector to the key `found`."""
        if offset <= 0:
            self.add_range(found, key, writes)
        else:
            self.add_range(key, after(found), writes)


def range_conflict(
    request: RangeRequest, bounds: Range, rows: list[Row], more: bool, space_end: bytes, ryw_disabled: bool
) -> Range:
    """The range that a range read depends on; `bounds` are the results of its selectors."""
    begin, end, _, reverse, *_ = request
    selectors = ((bounds[0], begin.offset), (bounds[1], end.offset))
    # Whether a selector reached the beginning or the end of the key space.
    to_begin = any(key == b"" and offset < 1 for key, offset in selectors)
    through_end = any(key == space_end and offset > 1 for key, offset in selectors)
    if ryw_disabled:
        return _conflict_without_ryw(
            request, rows, more, b"" if to_begin else None, space_end if through_end else None
        )
    low, high = min(begin.key, end.key), max(begin.key, end.key)
    if begin.key < end.key and more:
        # Rows beyond the last row returned cannot change a limited result.
        if reverse and begin.offset <= 1:
            low = end.key
        elif not reverse and end.offset > 0:
            high = begin.key
    if to_begin and begin.offset <= 0 and not (more and reverse):
        low = b""
    if through_end and end.offset > 0 and (reverse or not more):
        high = space_end
    if rows:
        first, last = (rows[-1][0], rows[0][0]) if reverse else (rows[0][0], rows[-1][0])
        if reverse or begin.offset <= 0:
            low = min(low, first)
        if high <= last and (not reverse or end.offset > 0):
            high = after(last)
    return low, high


def _conflict_without_ryw(
    request: RangeRequest, rows: list[Row], more: bool, lowest: bytes | None, highest: bytes | None
) -> Range:
    """The same with read-your-writes disabled: FoundationDB then uses another formula.

    `lowest` and `highest` are the ends of the key space, if a selector has reached them.
    """
    begin, end, _, reverse, *_ = request
    forward_begin = (not reverse or not more or begin.offset > 1) and begin.offset > 0
    forward_end = (reverse or not more or end.offset <= 0) and end.offset <= 1
    low, high = begin.key, end.key
    if lowest is not None:
        low = lowest
    elif rows and not forward_begin:
        low = rows[-1 if reverse else 0][0]
    if end.offset > begin.offset and end.key < low:
        low = end.key
    if highest is not None:
        high = highest
    elif rows and not forward_end:
        high = after(rows[0 if reverse else -1][0])
    if begin.offset < end.offset and begin.key > high:
        high = begin.key
    return low, high
