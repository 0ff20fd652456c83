"""Flags of key ranges: which parts of the key space a transaction has cleared or made unreadable."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

CLEARED = 1
UNREADABLE = 2


class Segments:
    """Flags by key range. Segment `i` reaches from `starts[i]` to the start of the next segment.

    `used` has all flags ever set, for fast checks.
    """

    __slots__ = ("flags", "starts", "used")

    def __init__(self) -> None:
        self.starts = [b""]
        self.flags = [0]
        self.used = 0

    def at(self, key: bytes) -> int:
        """The flags of one key."""
        return self.flags[bisect_right(self.starts, key) - 1]

    def change(self, begin: bytes, end: bytes, add: int, remove: int = 0) -> None:
        """Add and remove flags on [begin, end)."""
        self.used |= add
        first, last = self._split(begin), self._split(end)
        self.flags[first:last] = [(flags | add) & ~remove for flags in self.flags[first:last]]
        self._join(first, last)

    def runs(self, begin: bytes, end: bytes, flag: int) -> list[tuple[bytes, bytes]]:
        """The maximal parts of [begin, end) that have the flag."""
        found: list[tuple[bytes, bytes]] = []
        i = bisect_right(self.starts, begin) - 1
        while begin < end:
            stop = min(self.starts[i + 1], end) if i + 1 < len(self.starts) else end
            if self.flags[i] & flag:
                first = found.pop()[0] if found and found[-1][1] == begin else begin
                found.append((first, stop))
            begin, i = stop, i + 1
        return found

    def _split(self, key: bytes) -> int:
        """Split at `key` if no segment begins there; return the index of the segment that begins at `key`."""
        i = bisect_left(self.starts, key)
        if i == len(self.starts) or self.starts[i] != key:
            self.starts.insert(i, key)
            self.flags.insert(i, self.flags[i - 1])
        return i

    def _join(self, first: int, last: int) -> None:
        """Join adjacent segments with equal flags around a change: many adjacent clears must not grow the list."""
        for i in range(min(last, len(self.flags) - 1), max(first, 1) - 1, -1):
            if self.flags[i] == self.flags[i - 1]:
                del self.starts[i], self.flags[i]
