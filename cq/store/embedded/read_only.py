"""Read-only access to a store without write permission: creates and changes no file.

All processes with the store open share the index `-shm` of SQLite. Without write permission, this process uses the
index of the other processes. If there is no index, no other process has the store open, and SQLite reads the file as
an immutable database. If another process opens the store during a transaction, the transaction fails with 1007, and is
retried.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import apsw

from cq import runtime
from cq.errors import StoreError
from cq.store.api import TRANSACTION_TOO_OLD
from cq.store.embedded import file
from cq.store.embedded.committer import CommitRequest, Committer
from cq.store.embedded.database import Database
from cq.store.embedded.engine import Engine, OpenFile
from cq.store.embedded.error import FDBError
from cq.store.embedded.snapshots import Snapshot, SnapshotPool
from cq.store.embedded.state import Settings
from cq.store.embedded.watches import Watches

_Mark = tuple[int, ...]
_SHARED: Final = "mode=ro&readonly_shm=1"
_IMMUTABLE: Final = "mode=ro&immutable=1"
_IDENTITY: Final = 2  # parts of a mark
_PAUSES: Final = (0.0, 0.01, 0.1)  # seconds between tries

_T = TypeVar("_T")


class ReadOnlyDatabase(Database):
    """A store in one file, opened for reading. Commits with writes raise `StoreError`.

    Raises:
        NotAStore: there is no store, or it is damaged.
        StoreError: it cannot be read without write permission.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._defaults, self._engine = Settings(), Engine(path, _open_file)


def _open_file(path: Path) -> OpenFile:
    file.check(path, creates=False, writes=False)
    with file.explained(path):
        _connect(path, functools.partial(file.check_content, path)).close()
    lock = path.with_name(f"{path.name}-lock")
    return OpenFile(
        file.identify(path),
        ReadOnlyPool(path),
        ReadOnlyCommitter(path),
        ReadOnlyWatches(lambda: _connect(path), lock),
    )


class ReadOnlyConnection(apsw.Connection):
    """A read-only connection.

    Attributes:
        mark: the mark of the file when the connection was opened; only device and inode, unless it `is_immutable`.
        is_immutable: whether SQLite takes the file for one that no process writes.
    """

    mark: _Mark = ()
    is_immutable = False


def _read_schema(connection: apsw.Connection) -> None:
    # Not from `kv`, which may be a view in an unchecked file.
    connection.execute("SELECT 1 FROM sqlite_master").fetchone()


def _connect(path: Path, read: Callable[[apsw.Connection], None] = _read_schema) -> ReadOnlyConnection:
    """A connection on which `read` has succeeded: SQLite opens the index for the first read, and keeps it."""

    def connect() -> ReadOnlyConnection:
        connection = _open(path)
        try:
            read(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    return _with_retries(connect, (apsw.Error, StoreError))


def _with_retries(read: Callable[[], _T], errors: tuple[type[Exception], ...]) -> _T:
    """Call `read`, and retry it after each of `_PAUSES`: another process may be opening or closing the store.

    The first process that opens the store creates the index before it fills it. The last one that closes it removes the
    index, and then the log.
    """
    for pause in _PAUSES:
        with contextlib.suppress(*errors):
            return read()
        time.sleep(pause)
    return read()


def _open(path: Path) -> ReadOnlyConnection:
    mark = _mark(path)  # before the connection is opened: a later change of the file must change the mark
    if mark is None:
        raise StoreError(f"the store {path} does not exist any more: put it back, or make a new copy of it")
    if mark[-1]:
        connection = file.connect_uri(path, _SHARED, ReadOnlyConnection)
        connection.mark = mark[:_IDENTITY]
        return connection
    if file.has_log(path):
        raise StoreError(
            f"{path} has the log of a crashed process: run `cq status` once as a user who may write "
            "the store and its directory"
        )
    connection = file.connect_uri(path, _IMMUTABLE, ReadOnlyConnection)
    connection.mark, connection.is_immutable = mark, True
    return connection


def _mark(path: Path) -> _Mark | None:
    """Attributes that change when another process opens the store or writes the file; None if it is not there."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    is_open = path.with_name(f"{path.name}-shm").exists()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, is_open


class ReadOnlySnapshot(Snapshot):
    """A snapshot that expires when a file read as immutable has changed."""

    __slots__ = ()

    def _read(self, read: Callable[[apsw.Connection], _T]) -> _T:
        connection = self._connection
        try:
            return super()._read(read)
        finally:
            # After the read: a change before or during it makes its result invalid, and replaces its error.
            if getattr(connection, "is_immutable", False):
                _check_mark(connection, self._pool.path)


class ReadOnlyPool(SnapshotPool):
    """Snapshots on read-only connections. They are of the file that is at the path now, such as a later copy."""

    snapshot_type = ReadOnlySnapshot
    is_bound = False

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: _connect(path), path, None)

    def _connected(self, read: Callable[[apsw.Connection], _T]) -> tuple[apsw.Connection, _T]:
        connected = super()._connected

        def read_unchanged(connection: apsw.Connection) -> _T:
            found = read(connection)
            _check_mark(connection, self.path)
            return found

        return _with_retries(lambda: connected(read_unchanged), (FDBError,))

    def _keep_idle(self, connection: apsw.Connection) -> None:
        if getattr(connection, "is_immutable", False):
            self._discard(connection)  # the next transaction must see a later version of the file
        else:
            super()._keep_idle(connection)


def _check_mark(connection: apsw.Connection | None, path: Path) -> None:
    """Raise 1007 if the file has another mark than when the connection was opened."""
    mark = getattr(connection, "mark", ())
    if mark != (_mark(path) or ())[: len(mark)]:
        raise FDBError(TRANSACTION_TOO_OLD)


class ReadOnlyWatches(Watches):
    """Watches that open a new connection for each check."""

    def _check(self, connection: apsw.Connection) -> bool:
        with contextlib.closing(self._connect()) as current:
            return super()._check(current)


class ReadOnlyCommitter(Committer):
    """Rejects commits with writes, and gives versions to commits without. It has no connection and no lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def submit(self, request: CommitRequest) -> None:
        """Finish a commit without writes, with a version by the local clock. Raises `StoreError` if it has writes."""
        if request.writes:
            raise StoreError(f"{self._path} was opened for reading only")
        request.version = max(request.read_version or 0, runtime.time_ns() // 1000)
        request.finish(0)

    def close(self) -> None:
        """Do nothing: there are no connection and no lock."""

    def abandon(self) -> None:
        """Do nothing: there are no connection and no lock."""
