"""The locations of users in the memory of a process, kept up to date with one watch.

Each change of a user's cell writes a versionstamp for one of 256 buckets of users, in the transaction of the change. A
thread watches for any change, reads the versionstamps, and forgets the users of the buckets that have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeVar

from cq.cells.cells import CACHED_USERS, Cells, Location
from cq.encoding.hashing import bucket_of
from cq.keys import cell as keys
from cq.store.api import Transaction, Void
from cq.store.follower import StoreFollower

T = TypeVar("T")

_READ_EVERY: Final = 10.0
"""Seconds between two reads without a change, in case that a watch is lost."""


@dataclass(frozen=True)
class DirectoryChanges:
    """The latest changes of a directory.

    Attributes:
        version: counts the changes that this process has seen.
        stamps: {bucket: versionstamp of its latest change}.
    """

    version: int
    stamps: dict[int, bytes]


class DirectoryCache(StoreFollower[DirectoryChanges]):
    """The cells of users and the web addresses of cells, in memory for all threads and tasks of a process.

    While the store cannot be watched, each read is one of the directory. Create one for each process, after forking,
    and close it at the end.

    Args:
        cells: the cells.
    """

    _has_watch = True

    def __init__(self, cells: Cells) -> None:
        self._directory = cells.directory
        self._keeping = Lock()
        self._kept: dict[tuple[int, Any], Any] = {}
        self._changes = [0] * (keys.OF_ANY + 1)  # seen by this process, by buckets
        super().__init__(cells.directory.db, "the directory of cells", _READ_EVERY)

    def location(self, user: Any) -> Location:
        """Return the location of a user; raises `UserNotPlaced`, `UserDeleted`, `InvalidData`."""
        encoded = keys.encoded_user(user)

        def read() -> Location:
            record = self._directory.record(user)
            return Location(record.cell, record.epoch)

        return self._get(bucket_of(encoded, keys.OF_CELLS), encoded, read)

    def address(self, cell: str) -> str:
        """Return the web address of a cell, empty if it has none; raises `CellNotKnown`."""
        return self._get(keys.OF_CELLS, cell, lambda: self._directory.cell(cell).web)

    def _get(self, bucket: int, name: Any, read: Callable[[], T]) -> T:
        if self.latest is None or self.problem:
            return read()
        found: T | None = self._kept.get((bucket, name))
        if found is None:
            changes = self._changes[bucket]
            found = read()
            self._keep(bucket, name, found, changes)
        return found

    def _keep(self, bucket: int, name: Any, found: object, changes: int) -> None:
        """Keep what was read, unless a change was seen since then: it may have been read before that change."""
        with self._keeping:
            if self._changes[bucket] == changes:
                if len(self._kept) >= CACHED_USERS:
                    self._kept.clear()
                self._kept[bucket, name] = found

    def _fetch(self, tr: Transaction) -> tuple[DirectoryChanges | None, Void | None]:
        rows = tr.get_range(*keys.all_changed())
        stamps = {keys.changed_of(row.key): row.value for row in rows}
        before = self.latest
        if before is not None and before.stamps == stamps:
            return None, tr.watch(keys.changed(keys.OF_ANY))
        known = {} if before is None else before.stamps
        self._forget({bucket for bucket, stamp in stamps.items() if known.get(bucket) != stamp})
        return DirectoryChanges(1 if before is None else before.version + 1, stamps), None

    def _forget(self, buckets: set[int]) -> None:
        with self._keeping:
            for bucket in buckets:
                self._changes[bucket] += 1
            for each in [each for each in self._kept if each[0] in buckets]:
                del self._kept[each]
