"""The conflict log: the keys and ranges written by recent commits.

Every group of commits adds one row to the table `commits`: its version, and the keys and ranges that it wrote. A
transaction conflicts if a version later than its read version wrote a key that it read. The rows of the last seconds
are kept, so that transactions of that age can be checked; older transactions fail with 1007.

`ConflictLog` is the same log in memory. A process adds its own commits directly, and reads the commits of other
processes before its next commit.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Set
from itertools import accumulate, pairwise
from typing import Any

import apsw

from cq.store.api import NOT_COMMITTED, TRANSACTION_TOO_OLD
from cq.store.embedded.keys import Range
from cq.store.embedded.writes import ReadSet

KEPT_VERSIONS = 5_500_000
"""The age of the oldest rows kept: five seconds, and time for the check of a commit."""

KEPT_KEYS = 200_000
KEPT_BYTES = 32_000_000
"""The limits of the log in memory and in the file. Above them, older rows are dropped, and older transactions fail."""

_LATER = """
SELECT (SELECT min(version) FROM commits), version, writes FROM commits WHERE version > ? ORDER BY version
"""
_COUNTS = struct.Struct("<II")


def encode(keys: Iterable[bytes], ranges: Iterable[Range]) -> bytes:
    """The row of a group: counts, lengths, and the bytes of keys and range bounds."""
    points = list(keys)
    bounds = [bound for both in ranges for bound in both]
    parts = points + bounds
    lengths = array("I", map(len, parts))
    return _COUNTS.pack(len(points), len(bounds)) + lengths.tobytes() + b"".join(parts)


def _any_in(keys: list[bytes], begin: bytes, end: bytes) -> bool:
    i = bisect_left(keys, begin)
    return i < len(keys) and keys[i] < end


class CommittedGroup:
    """The keys and ranges that one version wrote, from this process or from a row of another one.

    While a group is built, each of its transactions is checked against the earlier ones, and then added.
    """

    __slots__ = ("_sorted", "bytes", "keys", "ranges", "version")

    def __init__(self, version: int, keys: set[bytes], ranges: list[Range], length: int) -> None:
        self.version = version
        self.keys = keys
        self.ranges = ranges
        self.bytes = length
        self._sorted: list[bytes] = []

    @classmethod
    def from_row(cls, version: int, row: bytes) -> CommittedGroup:
        """The group of a row of the log; raises `apsw.CorruptError` if the row is malformed."""
        if row == b"":
            return cls(version, set(), [], 0)
        try:
            count, bounds = _COUNTS.unpack_from(row)
            start = _COUNTS.size + 4 * (count + bounds)
            lengths = array("I", row[_COUNTS.size : start])
        except (struct.error, TypeError, ValueError) as error:
            raise apsw.CorruptError("its log of commits is malformed") from error
        if len(row) != start + sum(lengths) or bounds % 2:
            raise apsw.CorruptError("its log of commits is malformed")
        parts = [row[begin:end] for begin, end in pairwise(accumulate(lengths, initial=start))]
        ranges = zip(parts[count::2], parts[count + 1 :: 2], strict=True)
        return cls(version, set(parts[:count]), list(ranges), len(row))

    def conflicts_with(self, reads: ReadSet) -> bool:
        """Whether it wrote any of the keys, or into any of the ranges, that were read."""
        if not reads.keys.isdisjoint(self.keys):
            return True
        if reads.ranges and len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        for begin, end in reads.ranges:
            if _any_in(self._sorted, begin, end) or any(b < end and begin < e for b, e in self.ranges):
                return True
        return bool(reads.keys) and any(_any_in(reads.sorted_keys(), b, e) for b, e in self.ranges)

    def written_keys(self, keys: Set[bytes]) -> set[bytes]:
        """The given keys that it wrote."""
        found = {*keys & self.keys}
        for begin, end in self.ranges:
            found.update(key for key in keys if begin <= key < end)
        return found


class ConflictLog:
    """The log in memory. Only the leading thread uses it.

    There is no index of all keys: most transactions have few reads, or a recent read version, and are compared with the
    groups since then. Maintaining an index would cost every commit more than it saves for the other transactions.
    """

    def __init__(self) -> None:
        self._groups: deque[CommittedGroup] = deque()
        self._keys = self._bytes = 0  # of all groups

    @property
    def last(self) -> int:
        """The latest version; 0 before the first `load`."""
        return self._groups[-1].version if self._groups else 0

    def load(self, connection: apsw.Connection) -> None:
        """Read the commits of other processes since the last call."""
        rows: list[Any] = connection.execute(_LATER, (self.last,)).fetchall()
        if rows and rows[0][0] > self.last:
            # Other processes have deleted rows that this process never read: the log in memory would have a gap.
            self._groups.clear()
            self._keys = self._bytes = 0
        for _, version, row in rows:
            self.append(CommittedGroup.from_row(version, row))

    def append(self, group: CommittedGroup) -> None:
        """Add the latest version."""
        self._groups.append(group)
        self._keys += len(group.keys)
        self._bytes += group.bytes

    def check(self, read_version: int, reads: ReadSet) -> int:
        """The error code of a transaction with these reads at `read_version`; 0 if it may commit."""
        if read_version >= self.last:
            return 0
        if read_version < self._groups[0].version:
            return TRANSACTION_TOO_OLD
        for group in reversed(self._groups):
            if group.version <= read_version:
                break
            if group.conflicts_with(reads):
                return NOT_COMMITTED
        return 0

    def trim(self, now: int) -> int | None:
        """Drop groups that are too old or exceed the limits; return the first remaining version if it changed.

        The newest of the old groups stays: in an idle store, transactions have its version as their read version.
        """
        before = self._groups[0].version
        while len(self._groups) > 1 and (
            self._groups[1].version <= now - KEPT_VERSIONS
            or self._keys > KEPT_KEYS
            or self._bytes > KEPT_BYTES
        ):
            gone = self._groups.popleft()
            self._keys -= len(gone.keys)
            self._bytes -= gone.bytes
        first = self._groups[0].version
        return first if first != before else None
