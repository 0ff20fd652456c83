"""Read snapshots, from the first read of a transaction until its end or expiry; and version glances.

A snapshot is a read transaction of SQLite on its own connection, from a pool. SQLite cannot shorten its log while an
old snapshot is open. So a thread closes the snapshots of transactions older than FoundationDB's five seconds, even if
the application never uses them again.

A transaction whose first read is the metadata version gets a glance: the version of the store and the value of that
key, from memory or by one statement, without an open snapshot. Transactions that only add need no other read.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from cq import runtime
from cq.errors import StoreError
from cq.store.api import LIFETIME_SECONDS, METADATA_VERSION, TRANSACTION_TOO_OLD
from cq.store.embedded.error import STORAGE_ERRORS, FDBError, not_bytes, storage_error
from cq.store.embedded.future import FutureVoid
from cq.store.embedded.keys import Row, after
from cq.store.embedded.lock_file import LockFile

_CHECK_SECONDS = 0.5
_IDLE_CONNECTIONS = 16
_OPEN_SNAPSHOTS = 250
_MAX_IDLE_CHECKS = 20

_GET = "SELECT v FROM kv WHERE k = ?"
_GLANCE = "SELECT (SELECT max(version) FROM commits), (SELECT v FROM kv WHERE k = ?)"
_FORWARD = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_BACKWARD = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k DESC LIMIT ?"
_TOTAL = "SELECT coalesce(sum(length(k) + length(v)), 0) FROM kv WHERE k >= ? AND k < ?"
_ROW_SIZES = "SELECT k, length(k) + length(v) FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"
_SIZES_AT_ONCE = 10_000
_FIRST_FETCH_ROWS = 32
_MAX_FETCH_ROWS = 256

T = TypeVar("T")


class VersionGlance(NamedTuple):
    """The version of the store at one time, and its metadata version."""

    version: int
    metadata: bytes | None
    started: float

    @property
    def expired(self) -> bool:
        """Whether a transaction with this glance is too old to commit."""
        return runtime.monotonic() - self.started > LIFETIME_SECONDS


class Snapshot:
    """The store as of one version. Its methods raise 1007 once the snapshot is too old."""

    __slots__ = ("_connection", "_lock", "_pool", "started", "version")

    def __init__(self, pool: SnapshotPool, connection: apsw.Connection, version: int) -> None:
        self._pool = pool
        self._connection: apsw.Connection | None = connection
        self._lock = threading.Lock()
        self.started = runtime.monotonic()
        self.version = version

    @property
    def expired(self) -> bool:
        """Whether it is too old for reads."""
        return runtime.monotonic() - self.started > LIFETIME_SECONDS

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        rows = self.query(_GET, (key,))
        if not rows:
            return None
        value: bytes = rows[0][0]
        if type(value) is not bytes:
            raise damaged_row(self._pool.path)
        return value

    def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        """The result of a read on the connection; raises SQLite's errors as `FDBError`."""
        with self._lock:
            if self._connection is None or self.expired:
                raise FDBError(TRANSACTION_TOO_OLD)
            try:
                return read(self._connection)
            except STORAGE_ERRORS as error:
                raise storage_error(error, self._pool.path) from error
            except TypeError:
                raise damaged_row(self._pool.path) from None

    def rows(
        self, begin: bytes, end: bytes, limit: int, max_bytes: int, reverse: bool
    ) -> tuple[list[Row], bool]:
        """At most `limit` rows, or about `max_bytes`, from one end of [begin, end); and whether these are all rows."""
        statement, bounds = _BACKWARD if reverse else _FORWARD, (begin, end, limit)

        def read(connection: apsw.Connection) -> tuple[list[Row], bool]:
            rows: list[Row] = []
            size, fetch = 0, _FIRST_FETCH_ROWS
            cursor = connection.execute(statement, bounds)
            while more := list(islice(cursor, fetch)):
                rows += more
                size += len(b"".join(chain.from_iterable(more)))
                if size >= max_bytes:
                    break
                # As many as fit by the average size so far; the next rows may be larger.
                fetch = min(2 * fetch, _MAX_FETCH_ROWS, 1 + (max_bytes - size) * len(rows) // max(size, 1))
            cursor.close()
            return rows, not more and len(rows) < limit

        return self._read(read)

    def query(self, statement: str, parameters: tuple[object, ...]) -> list[Any]:
        """All result rows of a query."""
        return self._read(lambda connection: connection.execute(statement, parameters).fetchall())

    def range_size(self, begin: bytes, end: bytes) -> int:
        """The bytes of the keys and values in [begin, end). FoundationDB estimates them from samples."""
        total: int = self.query(_TOTAL, (begin, end))[0][0]
        return total

    def split_points(self, begin: bytes, end: bytes, chunk: int, limit: int) -> list[bytes]:
        """Keys that cut [begin, end) into parts of about `chunk` bytes; at most `limit` inner keys, if not negative."""
        points = [begin]
        start, size = begin, 0
        while rows := self.query(_ROW_SIZES, (start, end, _SIZES_AT_ONCE)):
            for key, length in rows:
                if size >= chunk and key > points[-1]:
                    if len(points) - 1 == limit:
                        return [*points, end]
                    points.append(key)
                    size = 0
                size += length
            start = after(rows[-1][0])
        return [*points, end]

    def close(self) -> None:
        """Release the connection. May be called twice, and by any thread."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(self, connection)

    def abandon(self) -> None:
        """Let another thread close it soon. For `__del__`: it takes no lock and runs no statement."""
        self._pool.abandoned.append(self)

    def leak(self) -> None:
        """In a forked child: never close the connection, which the parent uses."""
        connection, self._connection = self._connection, None
        if connection is not None:
            leak(connection)


class SnapshotPool:
    """The snapshots of one database and their connections. `lock` is None if glances must query SQLite.

    Attributes:
        is_bound: whether they are of the file that was opened, also if another one is at its path.
    """

    snapshot_type: type[Snapshot] = Snapshot
    is_bound = True

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        path: Path,
        lock: LockFile | None,
    ) -> None:
        self.path = path
        self._versions = lock
        self.abandoned: deque[Snapshot] = deque()
        self._connect = connect
        self._idle: list[apsw.Connection] = []
        self._open: dict[int, Snapshot] = {}
        self._lock = threading.RLock()
        self._freed: FutureVoid | None = None  # of those who wait for an open snapshot to be closed
        self._ending = threading.Event()
        self._count = 0
        self._expiry_thread: threading.Thread | None = None
        self._closed = False

    def snapshot(self) -> Snapshot:
        """A snapshot of the latest version. At the limit of open snapshots, waits until one is closed or expires."""
        connection, version = self._connected(_begin)
        snapshot = self.snapshot_type(self, connection, version)
        # By identity, and without a lock: single operations on a dict are atomic.
        self._open[id(snapshot)] = snapshot
        if self._expiry_thread is None:
            self._start_expiry_thread()
        return snapshot

    def glance(self, version: int | None) -> VersionGlance | None:
        """The latest version, or this earlier one, and its metadata version, for a transaction with no other read.

        As the client of a cluster, it knows the metadata version of an earlier version. Returns None if that has
        changed since.
        """
        started, versions = runtime.monotonic(), self._versions
        known = versions.known() if versions else None
        if known is None:
            known = self.run(lambda connection: connection.execute(_GLANCE, (METADATA_VERSION,)).get)
            if known[1] is not None and not isinstance(known[1], bytes):
                raise damaged_row(self.path)
            if versions:
                versions.note_read(*known)
        if version is None:
            return VersionGlance(known[0], known[1], started)
        is_known = versions is not None and version <= known[0] and versions.metadata_changed() <= version
        return VersionGlance(version, known[1], started) if is_known else None

    def run(self, read: Callable[[apsw.Connection], T]) -> T:
        """Return what `read` reads on a connection without a snapshot."""
        connection, found = self._connected(read)
        self._keep_idle(connection)
        return found

    def _connected(self, read: Callable[[apsw.Connection], T]) -> tuple[apsw.Connection, T]:
        """A connection, and what `read` reads on it; after an error or ^C, the connection counts no longer."""
        connection = self._acquire()
        try:
            return connection, read(connection)
        except BaseException as error:
            self._discard(connection)
            if isinstance(error, STORAGE_ERRORS):
                raise storage_error(error, self.path) from error
            raise

    def release(self, snapshot: Snapshot, connection: apsw.Connection) -> None:
        """Take back the connection of a closed snapshot."""
        self._open.pop(id(snapshot), None)
        try:
            connection.execute("COMMIT")
        except apsw.Error:
            self._discard(connection)
            return
        self._keep_idle(connection)

    def _keep_idle(self, connection: apsw.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(connection)
                self._notify()
                return
        self._discard(connection)

    def leak(self) -> None:
        """In a forked child: keep all connections open for ever, as closing them would release locks of the parent."""
        for snapshot in self._open.values():
            snapshot.leak()
        for connection in self._idle:
            leak(connection)

    def close(self) -> None:
        """Close all connections; reads of open snapshots then fail with 1007."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._notify()
        self._ending.set()
        # The copy is needed: `close` removes the snapshot from the dict, as other threads may.
        for snapshot in list(self._open.values()):
            snapshot.close()
        for connection in idle:
            connection.close()

    def _acquire(self) -> apsw.Connection:
        if self.abandoned:
            self._close_abandoned()
        while True:
            with self._lock:
                if self._closed:
                    raise StoreError("the store is closed: open it again")
                if self._idle:
                    return self._idle.pop()
                if self._count < _OPEN_SNAPSHOTS:
                    self._count += 1
                    break
                if self._freed is None or self._freed.is_ready():  # ready: a task that waited was cancelled
                    self._freed = FutureVoid()
                freed = self._freed
            freed.block_until_ready()  # the expiry thread ends the wait at the latest
        try:
            return self._connect()
        except BaseException as error:
            # Also after ^C: counting a connection without opening it would lower the limit for ever.
            with self._lock:
                self._count -= 1
            if isinstance(error, apsw.Error):
                raise storage_error(error, self.path) from error
            raise

    def _close_abandoned(self) -> None:
        while self.abandoned:
            with contextlib.suppress(IndexError):
                self.abandoned.popleft().close()

    def _discard(self, connection: apsw.Connection) -> None:
        connection.close()
        with self._lock:
            self._count -= 1
            self._notify()

    def _notify(self) -> None:
        """Let all who wait look for a connection; the caller holds the lock."""
        if self._freed is not None:
            self._freed.settle()

    # Expiry

    def _start_expiry_thread(self) -> None:
        with self._lock:
            if self._expiry_thread is None and not self._closed:
                thread = threading.Thread(target=self._run_expiry, name="cq-snapshots", daemon=True)
                thread.start()
                self._expiry_thread = thread

    def _run_expiry(self) -> None:
        idle_checks = 0
        while idle_checks < _MAX_IDLE_CHECKS:
            if self._ending.wait(_CHECK_SECONDS):
                return
            self._close_abandoned()
            self._expire()
            idle_checks = 0 if self._open else idle_checks + 1
        with self._lock:
            self._expiry_thread = None
        # A snapshot opened before `_expiry_thread` was reset started no thread of its own.
        if self._open:
            self._start_expiry_thread()

    def _expire(self) -> None:
        oldest = runtime.monotonic() - LIFETIME_SECONDS
        for snapshot in list(self._open.values()):
            if snapshot.started < oldest:
                snapshot.close()


def _begin(connection: apsw.Connection) -> int:
    """Take a snapshot; return its version. BEGIN alone takes no snapshot: the first read does."""
    connection.execute("BEGIN")
    version: int = connection.execute("SELECT max(version) FROM commits").get
    return version


def damaged_row(path: Path) -> FDBError:
    """The error for a row with other values than bytes."""
    return storage_error(not_bytes(), path)


def leak(connection: apsw.Connection) -> None:
    """Keep a connection open for ever, by a reference that no code removes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
