"""A map from every key to a few flags, kept as segments: what a transaction has done to whole key ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

CLEARED = 1
UNREADABLE = 2


class Segments:
    """Flags by key range. Segment `i` begins at `starts[i]` and ends where the next one begins.

    Flags that are not in `used` no segment has ever had.
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

    def within(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        """The segments of [begin, end), cut to it: first key, first key after it, flags."""
        starts = self.starts
        i = bisect_right(starts, begin) - 1
        while begin < end:
            stop = starts[i + 1] if i + 1 < len(starts) else end
            yield begin, min(stop, end), self.flags[i]
            begin, i = stop, i + 1

    def runs(self, begin: bytes, end: bytes, flag: int) -> list[tuple[bytes, bytes]]:
        """The parts of [begin, end) that carry the flag, each as long as possible."""
        found: list[tuple[bytes, bytes]] = []
        for start, stop, flags in self.within(begin, end):
            if not flags & flag:
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        return found

    def _split(self, key: bytes) -> int:
        """Make a segment begin at `key`; its number."""
        i = bisect_left(self.starts, key)
        if i == len(self.starts) or self.starts[i] != key:
            self.starts.insert(i, key)
            self.flags.insert(i, self.flags[i - 1])
        return i

    def _join(self, first: int, last: int) -> None:
        """Join neighbours of equal flags around a change: clears in a row must not make the list grow."""
        for i in range(min(last, len(self.flags) - 1), max(first, 1) - 1, -1):
            if self.flags[i] == self.flags[i - 1]:
                del self.starts[i], self.flags[i]
