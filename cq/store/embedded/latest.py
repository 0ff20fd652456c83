"""The latest version of the store and its metadata version, known without asking SQLite.

Whoever commits first writes the new version beside the store (`LockFile.announce`), while it keeps all others from
committing; only then does SQLite show the commit to anybody. So as long as the version announced there is one that this
process knows to be committed, nothing was committed after it, by any process. A process that dies in between leaves a
version that nobody knows: all ask SQLite, until the next commit.
"""

from __future__ import annotations

from .lockfile import LockFile


class Latest:
    """What one process knows. Thread-safe: it is one reference, and one that is overtaken is found to be."""

    def __init__(self, lock: LockFile) -> None:
        self._lock = lock
        self._known: tuple[int, bytes | None] = (-1, None)  # no version, nor what nobody has announced

    def announced(self) -> int:
        """The version of the latest commit, or of one that is under way or has failed; asked for before `learn`."""
        return self._lock.announced()

    def recall(self) -> tuple[int, bytes | None] | None:
        """The latest version and the metadata version, if they are known."""
        known = self._known
        return known if known[0] == self._lock.announced() else None

    def learn(self, announced: int, version: int, metadata: bytes | None) -> None:
        """Take over what SQLite says, if it is what had been announced before it was asked."""
        if version == announced:
            self._known = version, metadata

    def committed(self, before: int, version: int, *, changes_metadata: bool) -> None:
        """Go on from one version to the next."""
        if self._known[0] == before and not changes_metadata:
            self._known = version, self._known[1]
