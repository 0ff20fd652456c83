"""Which commits a transaction conflicts with: the log of what was written lately.

Every group of commits leaves one row in the table `commits`: its version and the keys and ranges that it wrote. A
transaction conflicts when a later version than its read version wrote into what it read. The rows of the last
seconds are kept, so that transactions of that age can be checked; older transactions are refused (1007).

`ConflictLog` is the same log in memory. A process adds its own commits to it directly and reads those of others when
it commits after them.
"""

from __future__ import annotations

import sqlite3
import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from itertools import accumulate, pairwise

from .error import NOT_COMMITTED, TRANSACTION_TOO_OLD
from .keys import Range
from .readset import ReadSet

KEPT_VERSIONS = 5_500_000
"""Rows younger than this are kept: five seconds, and some time for a commit to be checked."""

KEPT_KEYS = 200_000
KEPT_BYTES = 32_000_000
"""The log in memory and in the file stays below these, at the cost of older transactions."""

_COUNTS = struct.Struct("<II")


def encode(keys: Iterable[bytes], ranges: Iterable[Range]) -> bytes:
    """What a group of commits wrote, as stored: counts, lengths, and the bytes of keys and range bounds."""
    points = list(keys)
    bounds = [bound for both in ranges for bound in both]
    parts = points + bounds
    lengths = array("I", map(len, parts))
    return _COUNTS.pack(len(points), len(bounds)) + lengths.tobytes() + b"".join(parts)


def decode(row: bytes) -> tuple[list[bytes], list[Range]]:
    """The keys and ranges of a row of the log; raises `sqlite3.DatabaseError` when it is not one."""
    if row == b"":
        return [], []
    try:
        points, bounds = _COUNTS.unpack_from(row)
        start = _COUNTS.size + 4 * (points + bounds)
        ends = accumulate(array("I", row[_COUNTS.size : start]), initial=start)
        parts = [row[begin:end] for begin, end in pairwise(ends)]
        return parts[:points], list(zip(parts[points::2], parts[points + 1 :: 2], strict=True))
    except (struct.error, TypeError, ValueError) as error:
        raise sqlite3.DatabaseError("its log of commits is malformed") from error


def overlaps(reads: ReadSet, keys: list[bytes], ranges: list[Range]) -> bool:
    """Whether reads meet writes, other than the same single keys; `keys` are sorted if there are read ranges."""
    for begin, end in reads.ranges:
        if _any_in(keys, begin, end) or any(b < end and begin < e for b, e in ranges):
            return True
    return bool(ranges and reads.keys) and any(_any_in(reads.sorted_keys(), b, e) for b, e in ranges)


def _any_in(keys: list[bytes], begin: bytes, end: bytes) -> bool:
    i = bisect_left(keys, begin)
    return i < len(keys) and keys[i] < end


class Group:
    """What one version wrote. Its keys are sorted when the first range is compared with them."""

    __slots__ = ("_sorted", "bytes", "keys", "ranges", "version")

    def __init__(self, version: int, keys: set[bytes], ranges: list[Range], size: int) -> None:
        self.version = version
        self.keys = keys
        self.ranges = ranges
        self.bytes = size
        self._sorted: list[bytes] = []

    def sorted_keys(self) -> list[bytes]:
        """The keys in order."""
        if len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return self._sorted


class ConflictLog:
    """The log in memory. Only the committer that leads uses it.

    There is no index of all keys: nearly all transactions have read little, or lately, and are compared with the
    groups since. Keeping one would cost every commit more than it could save the few others.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.last = 0
        self._groups: deque[Group] = deque()
        self._keys = 0
        self._bytes = 0

    def load(self, connection: sqlite3.Connection) -> None:
        """Read what others have committed since."""
        oldest = connection.execute("SELECT min(version) FROM commits").fetchone()[0]
        if oldest > self.last:
            # Others have trimmed rows that this process never saw: what it knows has a gap.
            self._reset()
        rows = connection.execute(
            "SELECT version, writes FROM commits WHERE version > ? ORDER BY version", (self.last,)
        )
        for version, row in rows.fetchall():
            keys, ranges = decode(row)
            self.append(Group(version, set(keys), ranges, len(row)))

    def append(self, group: Group) -> None:
        """Add the latest version."""
        self.last = group.version
        self._groups.append(group)
        self._keys += len(group.keys)
        self._bytes += group.bytes

    def check(self, read_version: int, reads: ReadSet) -> int:
        """The error of a transaction that has read these at a version; 0 when it may commit."""
        if read_version >= self.last:
            return 0
        if read_version < self._groups[0].version:
            return TRANSACTION_TOO_OLD
        for group in reversed(self._groups):
            if group.version <= read_version:
                break
            if not reads.keys.isdisjoint(group.keys):
                return NOT_COMMITTED
            if (reads.ranges or group.ranges) and overlaps(reads, group.sorted_keys(), group.ranges):
                return NOT_COMMITTED
        return 0

    def trim(self, now: int) -> int | None:
        """Forget what is too old or too much; the version of the first group left, if any was forgotten.

        The newest group that is too old stays: a transaction of an idle store has that read version.
        """
        before = self._groups[0].version
        while len(self._groups) > 1 and self._surplus(self._groups[1].version <= now - KEPT_VERSIONS):
            gone = self._groups.popleft()
            self._keys -= len(gone.keys)
            self._bytes -= gone.bytes
        first = self._groups[0].version
        return first if first != before else None

    def _surplus(self, old: bool) -> bool:
        return old or self._keys > KEPT_KEYS or self._bytes > KEPT_BYTES
