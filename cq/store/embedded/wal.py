"""Checkpoints, which keep SQLite's write-ahead log short.

Commits append to the log, and a checkpoint copies it into the file. When all of it is copied and no reader needs it any
more, SQLite restarts the log, in the same disk space. Other processes append during a checkpoint, so a second, short
checkpoint copies the rest while they wait for the lock.

If readers overlap all the time, the log never restarts by itself. Then commits wait for the readers of the old log:
50 ms first, and longer after each failure. A reader that outlasts the longest wait is no snapshot, but a copy of the
store or a stopped process: then commits wait again only when the log has doubled.

A process counts the pages that it writes, and begins with those that it finds in the log. Otherwise many processes that
each write little, while another one keeps the store open, would make no checkpoint at all.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from cq.store.api import LIFETIME_SECONDS
from cq.store.embedded.file import BUSY_SECONDS, PAGE_BYTES, log_of
from cq.store.embedded.lock_file import LockFile

CHECKPOINT_PAGES = 2_000
LIMIT_PAGES = 64_000_000 // PAGE_BYTES
_FRAME_BYTES = PAGE_BYTES + 24  # of a page in the log
_STEP_PAGES = 32_000_000 // PAGE_BYTES
_LOCK_SECONDS = 1.0
_FIRST_WAIT_MS = 50
_LAST_WAIT_MS = int((LIFETIME_SECONDS + 2) * 1000)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class Checkpointer:
    """Counts written pages, and makes checkpoints on the committer's connection."""

    def __init__(self, connection: apsw.Connection, lock: LockFile) -> None:
        self._connection = connection
        self._lock = lock
        # Perhaps too many: SQLite keeps the file of an emptied log.
        self._pages = _size(log_of(lock.store)) // _FRAME_BYTES
        self._limit = LIMIT_PAGES
        self._wait_ms = _FIRST_WAIT_MS

    def record_commit(self, keys: int, size: int) -> None:
        """Count a commit by the most that it writes: a page for each key, its values, and the roots of the tables."""
        self._pages += keys + size // PAGE_BYTES + 3

    def checkpoint_if_due(self) -> None:
        """Make a checkpoint if enough pages were written since the last one."""
        if self._pages < CHECKPOINT_PAGES:
            return
        self._pages = 0
        self._checkpoint("PASSIVE")
        with self._lock.held(_LOCK_SECONDS) as is_held:
            if not is_held:
                self._pages = CHECKPOINT_PAGES  # the next commit tries again
                return
            length = self._checkpoint("PASSIVE")
        if length < LIMIT_PAGES:
            self._limit, self._wait_ms = LIMIT_PAGES, _FIRST_WAIT_MS
        elif length >= self._limit:
            self._restart_log()

    def _restart_log(self) -> None:
        """Block commits until no reader needs the log, or until the busy timeout of this attempt."""
        with self._lock.held(_LOCK_SECONDS) as is_held:
            if not is_held:
                return
            self._connection.execute(f"PRAGMA busy_timeout = {self._wait_ms}")
            try:
                length = self._checkpoint("TRUNCATE")
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        if length > 0:
            self._limit += _STEP_PAGES if self._wait_ms < _LAST_WAIT_MS else self._limit
            self._wait_ms = min(self._wait_ms * 3, _LAST_WAIT_MS)

    def _checkpoint(self, mode: str) -> int:
        """Make a checkpoint; return the number of pages left in the log."""
        try:
            length: int = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").get[1]
        except apsw.Error:
            # Another process makes a checkpoint, or the disk is full: the next commits try again. The commit before
            # it is durable and must not fail. Any other error will reappear in the next read or commit.
            return 0
        return length
