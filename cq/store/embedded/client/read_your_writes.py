"""Reads through own writes: the rows of a snapshot with the writes of the transaction applied.

A read walks the key space from one end of its range until it has all results. It fails with 1036 if it reaches an
unreadable key, where a versionstamped key may be written. If it has all results before, it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cq.store.embedded.binding.error import ACCESSED_UNREADABLE, FDBError
from cq.store.embedded.binding.future import Cancellation, Value, ready
from cq.store.embedded.binding.keys import Row, after
from cq.store.embedded.engine.snapshots import Snapshot
from cq.store.embedded.writes.writes import Writes

_PIECE_BYTES = 120_000
_PIECE_ROWS = 1_000


class ReadYourWrites:
    """A snapshot, taken when first needed, with the writes of the transaction on top of it."""

    __slots__ = ("_end", "_snapshot", "writes")

    def __init__(self, snapshot: Callable[[], Snapshot], writes: Writes | None, end: bytes) -> None:
        self._snapshot = snapshot
        self.writes = writes or None  # None for an empty `Writes`: the fast paths below
        self._end = end

    def get(self, key: bytes, cancellation: Cancellation, bypass_unreadable: bool) -> Value:
        """The value of a key; `cancellation` ends stored values, as own writes are known without a read."""
        writes = self.writes
        if writes is None:
            return ready(Value, self._snapshot().get(key), cancellation)
        if key in writes.values:
            return ready(Value, writes.values[key])
        if writes.unreadable(key) and not bypass_unreadable:
            raise FDBError(ACCESSED_UNREADABLE)
        pending = writes.pending.get(key)
        if pending is None:
            if writes.cleared(key):
                return ready(Value, None)
            return ready(Value, self._snapshot().get(key), cancellation)
        return ready(Value, pending.value(self._snapshot().get(key) if pending.dependent else None))

    def resolve(self, key: bytes, offset: int) -> bytes:
        """The key that a selector resolves to; offset 0 is the last key before `key`.

        Before the first key, the result is b""; after the last key, the end of the key space.
        """
        if offset > 0:
            found = self._nth(key, self._end, offset - 1, reverse=False)
            return self._end if found is None else found
        found = self._nth(b"", key, -offset, reverse=True)
        return b"" if found is None else found

    def rows(
        self, begin: bytes, end: bytes, limit: int, max_bytes: int, reverse: bool
    ) -> tuple[list[Row], bool]:
        """At most `limit` rows, or about `max_bytes`, from one end of [begin, end); and whether more may follow."""
        if begin >= end:
            return [], False
        writes = self.writes
        if writes is None:
            found, is_all = self._snapshot().rows(begin, end, limit, max_bytes, reverse)
            return found, not is_all
        rows: list[Row] = []
        size = 0
        for stored, start, stop in self._pieces(writes, begin, end, limit, max_bytes, reverse):
            piece = writes.overlay(stored, start, stop, reverse)
            rows += piece
            if len(rows) >= limit:
                return rows[:limit], True
            size += sum(len(key) + len(value) for key, value in piece)
            if size >= max_bytes:
                return rows, True
        return rows, False

    def _nth(self, begin: bytes, end: bytes, index: int, *, reverse: bool) -> bytes | None:
        if begin >= end:
            return None
        writes = self.writes
        if writes is None:
            return self._snapshot().nth_key(begin, end, index, reverse)
        for rows, start, stop in self._pieces(writes, begin, end, index + 1, _PIECE_BYTES, reverse):
            entries = writes.entries(rows, start, stop)
            if index >= len(entries):
                index -= len(entries)
                continue
            for key, there in reversed(entries) if reverse else entries:
                if index > 0:
                    index -= 1
                elif there:
                    return key
        return None

    def _pieces(
        self, writes: Writes, begin: bytes, end: bytes, limit: int, max_bytes: int, reverse: bool
    ) -> Iterator[tuple[list[Row], bytes, bytes]]:
        """The stored rows of [begin, end) in pieces, each with its range; raises 1036 at the first unreadable key."""
        unreadable = writes.unreadable_parts(begin, end)
        if unreadable and reverse:
            begin = unreadable[-1][1]
        elif unreadable:
            end = unreadable[0][0]
        parts = writes.live(begin, end)
        for start, stop, live in reversed(parts) if reverse else parts:
            yield from self._part(start, stop, live, min(limit, _PIECE_ROWS), max_bytes, reverse)
        if unreadable:
            raise FDBError(ACCESSED_UNREADABLE)

    def _part(
        self, begin: bytes, end: bytes, live: bool, limit: int, max_bytes: int, reverse: bool
    ) -> Iterator[tuple[list[Row], bytes, bytes]]:
        while begin < end:
            rows, done = self._snapshot().rows(begin, end, limit, max_bytes, reverse) if live else ([], True)
            # A piece reaches to its last row, or to the end of the part if it has all rows.
            if reverse:
                start, stop = (begin if done else rows[-1][0]), end
                end = start
            else:
                start, stop = begin, (end if done else after(rows[-1][0]))
                begin = stop
            yield rows, start, stop
            if done:
                return
