"""Keeping SQLite's write-ahead log short.

Commits append to the log; a checkpoint copies it into the file, and when no reader needs the log any more it starts
anew. Where readers overlap without end, that moment never comes by itself. Then commits wait until the readers of
the old log are gone, which takes no longer than a transaction lives.
"""

from __future__ import annotations

import sqlite3

from .file import PAGE_BYTES
from .lockfile import LockFile
from .snapshots import LIFETIME_SECONDS

CHECKPOINT_PAGES = 2_000
LIMIT_PAGES = 64_000_000 // PAGE_BYTES
_STEP_PAGES = 16_000_000 // PAGE_BYTES
_FIRST_WAIT_MS = 100
_LAST_WAIT_MS = int((LIFETIME_SECONDS + 2) * 1000)


class WalKeeper:
    """Counts what is written, and makes checkpoints on the committer's connection."""

    def __init__(self, connection: sqlite3.Connection, lock: LockFile) -> None:
        self._connection = connection
        self._lock = lock
        self._pages = 0
        self._limit = LIMIT_PAGES
        self._wait_ms = _FIRST_WAIT_MS

    def wrote(self, keys: int, size: int) -> None:
        """Note a commit, by what it writes at most: a page for each key, its values, and the tables' roots."""
        self._pages += keys + size // PAGE_BYTES + 3

    def tend(self) -> None:
        """Make a checkpoint if enough has been written since the last one."""
        if self._pages < CHECKPOINT_PAGES:
            return
        self._pages = 0
        length = self._checkpoint("PASSIVE")
        if length < LIMIT_PAGES:
            self._limit, self._wait_ms = LIMIT_PAGES, _FIRST_WAIT_MS
        elif length >= self._limit:
            self._start_anew()

    def _start_anew(self) -> None:
        """Stop commits until old readers are gone: first for a moment, then longer, and at last until it is sure."""
        with self._lock.held():
            self._connection.execute(f"PRAGMA busy_timeout = {self._wait_ms}")
            try:
                length = self._checkpoint("TRUNCATE")
            finally:
                self._connection.execute("PRAGMA busy_timeout = 10000")
        if length > 0:
            self._limit += _STEP_PAGES
            self._wait_ms = min(self._wait_ms * 3, _LAST_WAIT_MS)

    def _checkpoint(self, mode: str) -> int:
        """How many pages the log still has."""
        try:
            length: int = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[1]
        except sqlite3.OperationalError:
            # Another process makes one at this moment, or the disk is full: the next commits try again.
            return 0
        return length
