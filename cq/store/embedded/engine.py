"""The engine of one open store file: its snapshots, commits and watches."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from cq import runtime
from cq.errors import StoreError
from cq.store.embedded import file, future
from cq.store.embedded.committer import WAIT_SECONDS, Committer
from cq.store.embedded.file import Access
from cq.store.embedded.lock_file import LockFile
from cq.store.embedded.snapshots import Snapshot, SnapshotPool, VersionGlance
from cq.store.embedded.watches import Watches

_LOOK_SECONDS: Final = 1.0
"""How often reads look whether the file is still the one that was opened."""


class OpenFile(NamedTuple):
    """The parts of an engine, which use one file."""

    file_id: file.FileId
    pool: SnapshotPool
    committer: Committer
    watches: Watches


def open_file(path: Path, *, power_safe: bool, mode: int, create: bool) -> OpenFile:
    """Open a store for reading and writing; see `Database` for the arguments and errors."""
    connect = functools.partial(file.connect, path, power_safe=power_safe)
    exists = file.check(path, creates=create)
    rights = file.access_of(path) if exists else file.new_access(mode)
    lock = LockFile(path, rights)
    try:
        if not exists:
            _create(path, lock, rights)
        file_id = file.identify(path)
        connection = file.connect_first(path, connect)
    except BaseException:
        lock.close()
        raise
    pool = SnapshotPool(connect, path, lock)
    return OpenFile(file_id, pool, Committer(connection, lock), Watches(connect, lock.path))


def _create(path: Path, lock: LockFile, rights: Access) -> None:
    with lock.held(WAIT_SECONDS) as is_held:
        if not is_held:
            raise StoreError(lock.obstacle())
        # Another process may have created it while this one waited for the lock.
        if not file.check(path):
            file.create(path, rights)


class Engine:
    """One open file, shared by the database and its transactions; closed when the last of them is dropped."""

    # Until it is open, also for `__del__`: it must not close anything if opening fails.
    _unusable: str | None = "the store could not be opened"

    def __init__(self, path: str | os.PathLike[str], open_parts: Callable[[Path], OpenFile]) -> None:
        # Resolved: all processes must use the same lock file beside the store.
        self.path = Path(os.path.realpath(path))
        with file.opening:
            self._file_id, self._pool, self.committer, self.watches = open_parts(self.path)
            file.note_open(self._file_id)
            _engines.add(self)
            self._unusable = None
        self._next_look = 0.0

    def snapshot(self) -> Snapshot:
        """A snapshot of the latest version.

        Raises `StoreError` within a second after a file of the store was removed or replaced: reads would see the
        former store for ever, and commits fail.
        """
        self.check_usable()
        if self._pool.is_bound and (now := runtime.monotonic()) >= self._next_look:
            if not self.committer.places.are_kept():
                raise StoreError(self.committer.places.lost)
            self._next_look = now + _LOOK_SECONDS
        return self._pool.snapshot()

    def glance(self, version: int | None = None) -> VersionGlance | None:
        """See `SnapshotPool.glance`."""
        self.check_usable()
        return self._pool.glance(version)

    def copy_to(self, path: Path) -> None:
        """Write a copy of the store; see `cq.store.make_copy`."""
        self.check_usable()
        self._pool.run(
            lambda connection: file.write_copy(self.path, connection, Path(os.path.realpath(path)))
        )

    def check_usable(self) -> None:
        """Raise `StoreError` if the store is closed, or was opened by the parent process."""
        if self._unusable is not None:
            raise StoreError(self._unusable)

    def close(self) -> None:
        """Finish the running commits and close the file. Watches fail with 1101, later calls with `StoreError`."""
        if self._unusable is not None:
            return
        self.committer.refuse_within_commit()
        self._unusable = "the store is closed: open it again"
        self.watches.close()
        self._pool.close()
        self.committer.close()
        # Last: until all connections are closed, `file.check` must not open the file, which would release their locks.
        file.note_closed(self._file_id)

    def abandon(self) -> None:
        """In a forked child: never touch the file again, not even to close it."""
        self._unusable = file.FORKED
        self._pool.leak()
        self.committer.abandon()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then daemon threads are frozen, perhaps with a lock that closing needs
            self.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    file.note_fork()
    future.note_fork()
    for engine in list(_engines):
        engine.abandon()


os.register_at_fork(after_in_child=_after_fork)
