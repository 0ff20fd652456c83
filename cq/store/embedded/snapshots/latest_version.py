"""The latest version of the store and its metadata version, known without asking SQLite.

Whoever commits first writes the version of the commit beside the store, while it keeps all others from committing, and
before that, if the commit changes the metadata version, that it is the last one to do so (`LockFile.announce`). So
whoever has once asked SQLite for the metadata version knows that it still is what it was, as long as no later change of
it is announced; and that any version announced is not before that of any commit that has returned.

The commit of a version that was announced may be under way, or never come: its process may die. Nobody else's gets
that version then, but a later one, so a transaction may begin at it all the same: there is nothing between the last
commit and it. If it was to change the metadata version, all ask SQLite until the next commit.
"""

from __future__ import annotations

from cq import runtime
from cq.store.embedded.file.lock_file import LockFile

_PLAUSIBLE = 3_600_000_000
"""How far a version that was announced may lie ahead of time and commits: an hour that clocks were set back by."""


class LatestVersion:
    """What one process knows. Thread-safe: it is one reference, and one that is overtaken is found to be."""

    def __init__(self, lock: LockFile) -> None:
        self._lock = lock
        self._cached: tuple[int, bytes | None] | None = None

    def known(self) -> tuple[int, bytes | None] | None:
        """A version not before that of any commit that has returned, and the metadata version then, if it is known."""
        announced = self._lock.announced()  # asked for first: a change before it has been announced, too
        if self._cached is None:
            return None
        version, metadata = self._cached
        if self._lock.metadata_changed() > version or not _is_plausible(announced, version):
            return None
        return max(version, announced), metadata

    def update(self, version: int, metadata: bytes | None) -> None:
        """Take over what SQLite says."""
        self._cached = version, metadata

    def next(self, last: int) -> int:
        """The version of the commit after the last one; the lock is held. About the time in microseconds."""
        version, announced = max(last + 1, runtime.time_ns() // 1000), self._lock.announced()
        return max(version, announced + 1) if _is_plausible(announced, last) else version


def _is_plausible(announced: int, known: int) -> bool:
    """Whether a version can have been announced, and is not what somebody else has written into the file."""
    # The clock, which costs more than all else here, is read only if the known version does not suffice.
    return announced <= known + _PLAUSIBLE or announced <= runtime.time_ns() // 1000 + _PLAUSIBLE
