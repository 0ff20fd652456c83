"""The latest version of the store and its metadata version, without a query.

Before its COMMIT, and with the commit lock held, a process announces the version of the commit in the lock file. If the
commit changes the metadata version, the process first announces the version of that change (`LockFile.announce`). So a
metadata version read from SQLite stays valid until a later change is announced, and the latest announced version is not
before the version of any commit that has returned.

The commit of an announced version may still be running, or never happen if its process dies. Other commits then get
later versions, so a transaction may begin at the announced version: no commit lies between the last commit and it. If
the lost commit announced a change of the metadata version, all processes query SQLite until the next commit.
"""

from __future__ import annotations

from cq import runtime
from cq.store.embedded.file.lock_file import LockFile

_PLAUSIBLE = 3_600_000_000
"""How far an announced version may be ahead of the clock and of known commits: one hour, if a clock was set back."""


class LatestVersion:
    """The latest version that one process knows. Thread-safe: it is one reference, and `known` detects an old value."""

    def __init__(self, lock: LockFile) -> None:
        self._lock = lock
        self._cached: tuple[int, bytes | None] | None = None

    def known(self) -> tuple[int, bytes | None] | None:
        """A version at or after all returned commits, and its metadata version, if known."""
        # Read first: a metadata change before this version is then announced as well.
        announced = self._lock.announced()
        if self._cached is None:
            return None
        version, metadata = self._cached
        if self._lock.metadata_changed() > version or not _is_plausible(announced, version):
            return None
        return max(version, announced), metadata

    def update(self, version: int, metadata: bytes | None) -> None:
        """Store a version and its metadata version, as read from SQLite."""
        self._cached = version, metadata

    def next(self, last: int) -> int:
        """The version of the next commit, about the time in microseconds. The caller holds the commit lock."""
        # Later than an announced version, even if its commit failed: it may be the read version of a transaction.
        version, announced = max(last + 1, runtime.time_ns() // 1000), self._lock.announced()
        return max(version, announced + 1) if _is_plausible(announced, last) else version


def _is_plausible(announced: int, known: int) -> bool:
    """Whether a version can have been announced by a commit; another program may have written into the file."""
    # Reading the clock is the most expensive step here, so it comes last.
    return announced <= known + _PLAUSIBLE or announced <= runtime.time_ns() // 1000 + _PLAUSIBLE
