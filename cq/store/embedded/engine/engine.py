"""The engine of one open store file: its snapshots, commits, watches and lock."""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from cq.errors import StoreError
from cq.store.embedded.engine.committer import WAIT_SECONDS, Committer
from cq.store.embedded.engine.wal import is_log_long
from cq.store.embedded.engine.watches import Watches
from cq.store.embedded.file import access, file, handles
from cq.store.embedded.file.access import Access
from cq.store.embedded.file.lock_file import LockFile
from cq.store.embedded.snapshots.latest_version import LatestVersion
from cq.store.embedded.snapshots.snapshots import Snapshot, SnapshotPool, VersionGlance, leak


class Engine:
    """One open file. The database and its transactions share it; it closes the file when the last of them is dropped.

    Raises:
        NotAStore: the file is not a store, damaged, or of a newer format; it is not modified.
        StoreError: it cannot be read or written: its disk is full or fails, or another process locks it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        power_safe: bool = True,
        mode: int = access.PRIVATE,
        create: bool = True,
    ) -> None:
        # First, for `__del__`: it must not close anything if the rest fails.
        self._unusable: str | None = "the store could not be opened"
        # Resolved: all processes must use the same lock file beside the store.
        self.path = Path(path).resolve()
        with handles.lock:
            self._open(functools.partial(file.connect, self.path, power_safe=power_safe), mode, create)

    def _open(self, connect: Callable[..., sqlite3.Connection], mode: int, create: bool) -> None:
        exists = file.check(self.path, creates=create)
        rights = access.existing(self.path) if exists else access.new(mode)
        self._lock = LockFile(self.path, rights)
        try:
            if not exists:
                self._create(rights)
            self._file_id = file.identify(self.path)
            self._connection = file.connect_first(self.path, connect)
        except BaseException:
            self._lock.close()
            raise
        log = self.path.with_name(f"{self.path.name}-wal")
        latest = LatestVersion(self._lock)
        self._pool = SnapshotPool(connect, functools.partial(is_log_long, log), self.path, latest)
        self.committer = Committer(self._connection, self._lock, latest)
        self.watches = Watches(connect, self._lock.path)
        # `_unusable` last: until then, `__del__` must not call `close`, which needs all attributes.
        handles.acquire(self._file_id, self)
        self._unusable = None

    def _create(self, rights: Access) -> None:
        with self._lock.held(WAIT_SECONDS) as is_held:
            if not is_held:
                raise StoreError(self._lock.obstacle())
            # Another process may have created it while this one waited for the lock.
            if not file.check(self.path):
                file.create(self.path, rights)

    def snapshot(self) -> Snapshot:
        """A snapshot of the latest version."""
        self.check_usable()
        return self._pool.snapshot()

    def glance(self) -> VersionGlance:
        """The latest version and the metadata version, for a transaction that may need no other read."""
        if self._unusable is not None:
            self.check_usable()
        return self._pool.glance()

    def check_usable(self) -> None:
        """Raise `StoreError` if the store is closed, or was opened by the parent process."""
        if self._unusable is not None:
            raise StoreError(self._unusable)

    def close(self) -> None:
        """Finish the running commits and close the file. Watches fail with 1101, later calls with `StoreError`."""
        if self._unusable is not None:
            return
        self._unusable = "the store is closed: open it again"
        # The committer before the lock, which its commits need. The file id last: until all connections are closed,
        # `file.check` must not open the file, which would release their locks.
        self.watches.close()
        self._pool.close()
        self.committer.close()
        self._lock.close()
        handles.release(self._file_id)

    def abandon(self) -> None:
        """In a forked child: never touch the file again, not even to close it."""
        self._unusable = handles.FORKED
        self._pool.leak()
        leak(self._connection)
        self._lock.abandon()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then daemon threads are frozen, perhaps with a lock that closing needs
            self.close()
