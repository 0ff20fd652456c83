"""Group commit: many transactions become one SQLite transaction with one sync of the disk.

Threads need no commit thread, which would cost each commit two switches of threads; only tasks of event loops, which
must not wait for the disk, leave their commits to one. A thread that commits while no other
thread does becomes the leader, and commits all queued requests; requests that arrive during a commit are in the next
group. After its own commit, a leader wakes a waiting thread as its successor, so that no thread works for the others
for ever. The waiting threads also look for themselves whether there is a leader, since ^C may interrupt the leader.

The steps for a group, with the commit lock of all processes held:

1. read the latest version and the commits of other processes since the previous group;
2. check each transaction in order for conflicts with the log and with earlier transactions of the group;
3. apply the accepted transactions; all get one version, and their order completes their versionstamps;
4. add one row to the log, announce the version to all processes, and commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import apsw

from cq import runtime
from cq.errors import StoreError
from cq.store.api import COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, TRANSACTION_TIMED_OUT
from cq.store.embedded.atomic import (
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    apply,
    stamp,
    stamp_at,
)
from cq.store.embedded.conflict_log import CommittedGroup, ConflictLog, encode
from cq.store.embedded.error import (
    IO_ERROR,
    STORAGE_ERRORS,
    FDBError,
    is_unwritten,
    not_bytes,
    storage_error,
)
from cq.store.embedded.file import Places
from cq.store.embedded.future import FutureVoid
from cq.store.embedded.lock_file import LockFile
from cq.store.embedded.snapshots import leak
from cq.store.embedded.wal import Checkpointer
from cq.store.embedded.writes import CLEAR_RANGE, Mutation, ReadSet, StampedKey, Writes

_GET = "SELECT v FROM kv WHERE k = ?"
_PUT = "INSERT OR REPLACE INTO kv VALUES (?, ?)"
_MANY = 256
_PUT_MANY = _PUT + ", (?, ?)" * (_MANY - 1)  # half of the time for each row, of a pass about 3 %
_DELETE = "DELETE FROM kv WHERE k = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE k >= ? AND k < ?"


class Applier:
    """Builds a group: checks each transaction against the log and the earlier ones, and collects its writes.

    The values are written in key order, which is faster than in the order of the transactions, and before a range
    clear, which changes the table at once.
    """

    def __init__(self, connection: apsw.Connection, log: ConflictLog, version: int) -> None:
        self.group = CommittedGroup(version, set(), [], 0)
        self.accepted = 0
        self.changes_metadata = False
        self._connection = connection
        self._log = log
        self._values: dict[bytes, bytes | None] = {}

    def add(self, request: CommitRequest) -> int:
        """Apply a transaction; return 0, or the error code of a rejected one."""
        # A transaction without reads cannot conflict.
        if request.read_version is not None and request.reads:
            if code := self._log.check(request.read_version, request.reads):
                return code
            if self.group.conflicts_with(request.reads):
                return NOT_COMMITTED
        request.version, request.order = self.group.version, self.accepted
        self.accepted += 1
        self.changes_metadata |= request.changes_metadata
        self.group.keys.update(request.writes.write_keys, self._apply(request.writes, request.versionstamp))
        self.group.ranges += request.writes.write_ranges
        return 0

    def finish(self) -> bytes:
        """Write the collected values; return the row for the log."""
        self.flush()
        row = encode(self.group.keys, self.group.ranges)
        self.group.bytes = len(row)
        return row

    def _apply(self, writes: Writes, versionstamp: bytes) -> list[bytes]:
        """Apply the writes of a transaction; return its versionstamped keys."""
        stamped = self._mutate(writes.before_values(), versionstamp)
        values = self._values
        values.update(writes.values)
        stamped += self._mutate(writes.after_values(), versionstamp)
        for write in writes.stamped:
            if isinstance(write, StampedKey):
                key = stamp_at(write.param, write.start, versionstamp)
                values[key] = write.value
                stamped.append(key)
            else:
                values[write.key] = stamp_at(write.param, write.start, versionstamp)
        return stamped

    def flush(self) -> None:
        """Write the collected values."""
        values, self._values = self._values, {}
        if None in values.values():
            gone = [(key,) for key, value in values.items() if value is None]
            self._connection.executemany(_DELETE, sorted(gone))
            values = {key: value for key, value in values.items() if value is not None}
        rows = sorted(values.items())
        whole = len(rows) // _MANY * _MANY
        for start in range(0, whole, _MANY):
            self._connection.execute(_PUT_MANY, list(chain.from_iterable(rows[start : start + _MANY])))
        self._connection.executemany(_PUT, rows[whole:])

    def _mutate(self, mutations: Iterable[Mutation], versionstamp: bytes) -> list[bytes]:
        values = self._values
        stamped = []
        for operation, key, operand in mutations:
            if operation == SET:
                values[key] = operand
            elif operation == CLEAR_RANGE:
                self.flush()
                self._connection.execute(_DELETE_RANGE, (key, operand))
                values = self._values
            elif operation == SET_VERSIONSTAMPED_KEY:
                stamped.append(stamp(key, versionstamp))
                values[stamped[-1]] = operand
            elif operation == SET_VERSIONSTAMPED_VALUE:
                values[key] = stamp(operand or b"", versionstamp)
            else:
                values[key] = apply(operation, self._current(key), operand)
        return stamped

    def _current(self, key: bytes) -> bytes | None:
        if key in self._values:
            return self._values[key]
        row = self._connection.execute(_GET, (key,)).fetchone()
        if row is None:
            return None
        if type(row[0]) is not bytes:
            raise not_bytes()
        return row[0]


GROUP_TRANSACTIONS = 500
GROUP_BYTES = 16_000_000
WAIT_SECONDS = 30.0
"""The time a commit waits for the lock of all processes, if its transaction has no timeout."""

_LOCK_CHECK_SECONDS = 0.05
_MAX_ROUNDS = 3
_PATIENCE_SECONDS = 0.1
"""How often a waiting thread checks whether there is a leader."""

_TRIM_SECONDS = 0.5

_NO_WRITES = Writes()
_NO_READS = ReadSet()


class CommitRequest(FutureVoid):
    """One transaction to commit, and the future of its commit."""

    __slots__ = (
        "changes_metadata",
        "committer",
        "expires",
        "is_awaited",
        "is_finished",
        "on_done",
        "order",
        "read_version",
        "reads",
        "size",
        "version",
        "writes",
    )

    def __init__(
        self,
        committer: Committer,
        writes: Writes,
        reads: ReadSet,
        size: int,
        done: Callable[[CommitRequest, FDBError | None], None],
    ) -> None:
        super().__init__()
        self.committer = committer
        self.writes = writes
        self.size = size
        self.on_done = done  # called with the error or None, before the future is ready
        self.reads = reads
        self.expires = runtime.monotonic() + WAIT_SECONDS  # when it stops waiting for the lock
        self.read_version: int | None = None  # None: it has not read
        self.changes_metadata = False
        self.version = -1
        self.order = 0
        self.is_awaited = False
        self.is_finished = False

    @property
    def versionstamp(self) -> bytes:
        """The version of its group and its order in the group, ten bytes."""
        return self.version.to_bytes(8, "big") + self.order.to_bytes(2, "big")

    def block_until_ready(self) -> None:
        """Wait; commit the next groups if the leader wakes this thread as its successor."""
        self._take()
        if self._done or runtime.suspend(self):  # done: perhaps cancelled and still queued
            return
        self.is_awaited = True
        try:
            while not self._done:
                self._gate.acquire(timeout=_PATIENCE_SECONDS)
                if not self._done:
                    self.committer.lead(self)
        finally:
            self.is_awaited = False
        self.wake()  # another thread may wait for the same future

    def finish(self, code: int, detail: str = "") -> None:
        """Set the result: committed (0), or the code of an error. May be called again after an interrupt."""
        error = FDBError(code, detail) if code else None
        try:
            self.on_done(self, error)
        finally:
            self.settle(error=error)
        self.is_finished = True
        # A caller that keeps the future must not keep the transaction and its writes in memory.
        self.writes, self.reads, self.on_done = _NO_WRITES, _NO_READS, lambda request, error: None


class Committer:
    """Makes all commits of one database in this process.

    The thread that holds `_leader` is the leader. ^C may interrupt it anywhere, and the program may survive that. So a
    request stays queued until it is finished; the results of a group are recorded before its COMMIT; and each step
    begins by completing the step of an interrupted leader.
    """

    _leading: int | None = None  # the identifier of the leader's thread

    def __init__(self, connection: apsw.Connection, lock: LockFile) -> None:
        self._connection = connection
        self._lock = lock
        self.places = Places(lock.store)
        self._checkpointer = Checkpointer(connection, lock)
        self._log = ConflictLog()
        self._queue: deque[CommitRequest] = deque()
        self._leader = threading.Lock()
        self._successor: CommitRequest | None = None  # its thread was woken to lead, and does not lead yet
        self._helper: ThreadPoolExecutor | None = None  # commits for tasks of event loops
        self._is_closed = False
        self._next_trim = 0.0
        # Requests with their results: valid when SQLite has no transaction open, since COMMIT has succeeded or failed.
        self._results: list[tuple[CommitRequest, int, str]] = []
        self._in_doubt = False  # whether a commit reported as failed may reappear after a crash

    def submit(self, request: CommitRequest) -> None:
        """Commit it now with all queued requests, or queue it if another thread leads."""
        if self._is_closed:
            raise StoreError("the store is closed: open it again")
        self.refuse_within_commit()
        self._queue.append(request)
        if runtime.is_task():  # the caller's thread runs an event loop
            if self._helper is None:
                self._helper = ThreadPoolExecutor(1, "cq-commit")
            try:
                self._helper.submit(self.lead, None)
            except RuntimeError:  # no thread can be started, or none any more as the interpreter shuts down
                self.lead(request)
            return
        # A woken successor leads soon, with larger groups than this thread now; unless ^C has interrupted it.
        if self._successor is None or not self._successor.is_awaited:
            self.lead(request)

    def lead(self, own: CommitRequest | None) -> None:
        """Commit groups until the queue is empty, or until `own` is ready and another thread takes over.

        Return at once if another thread leads: it reads the queue again after it has released `_leader`.
        """
        rounds = 0
        while self._queue and not self._leader.locked():
            with self._leader:
                try:
                    self._leading = threading.get_ident()
                    self._successor = None
                    # Kept until the lock is free: the last transaction to be dropped closes the store.
                    owners = [request.on_done for request in list(self._queue)]
                    self._commit()
                finally:
                    self._leading = None
            del owners
            rounds += 1
            if own is not None and own._done and self._wake_successor(rounds):
                return

    def refuse_within_commit(self) -> None:
        """Raise `StoreError` in a finalizer or signal handler that has interrupted the leader: it waits for itself."""
        if self._leading == threading.get_ident():
            raise StoreError(
                "a finalizer or a signal handler has interrupted a commit of its own thread, so it can neither commit "
                "nor close the store: let it start a thread that does so, or set a flag"
            )

    def close(self) -> None:
        """Finish the queued commits, and reject later ones."""
        self._is_closed = True
        with self._leader:
            while self._queue:
                self._commit()
            self._connection.close()
        if self._helper is not None:
            self._helper.shutdown(wait=False)  # not waiting: its thread may be the caller
        self._lock.close()

    def abandon(self) -> None:
        """In a forked child: never touch the file again."""
        leak(self._connection)
        self._lock.abandon()

    def _wake_successor(self, rounds: int) -> bool:
        """Let another thread lead, if requests are queued; return whether it does."""
        successor = next((each for each in list(self._queue) if each.is_awaited and not each._done), None)
        if successor is not None:
            self._successor = successor
            successor.wake()
            return True
        if not self._queue or rounds < _MAX_ROUNDS:
            return False
        # No thread waits for the queued commits, but they must be made.
        try:
            threading.Thread(target=self.lead, args=(None,), name="cq-commit", daemon=True).start()
        except RuntimeError:  # no thread can be started: the caller, whose own commit is made, goes on
            return False
        return True

    # Committing

    def _commit(self) -> None:
        """Acquire the lock, and then commit the queued requests; more may be queued during the wait."""
        group: list[CommitRequest] = []
        try:
            self._recover()
            if not self._queue:
                return
            if not self._lock.acquire(_LOCK_CHECK_SECONDS):
                self._expire()
                return
            group = self._next_group()
            self._resolve_doubt()
            self._commit_group(group)
            self._lock.notify()
        except STORAGE_ERRORS as error:
            self._fail(group or self._next_group(), error)
        except BaseException:
            self._recover()
            raise
        finally:
            self._lock.release()
        self._deliver()
        self._checkpointer.checkpoint_if_due()

    def _next_group(self) -> list[CommitRequest]:
        group: list[CommitRequest] = []
        size = 0
        for request in list(self._queue):
            if len(group) == GROUP_TRANSACTIONS or size >= GROUP_BYTES:
                break
            if not request.is_finished:
                group.append(request)
                size += request.size
        return group

    def _recover(self) -> None:
        """Complete the step of an interrupted leader: its group is committed, or remains queued."""
        if self._connection.in_transaction:
            self._results = []
            self._roll_back()
        self._deliver()

    def _deliver(self) -> None:
        """Finish the requests with results, and remove them from the queue."""
        for request, code, detail in self._results:
            request.finish(code, detail)
        self._results = []
        while self._queue and self._queue[0].is_finished:
            self._queue.popleft()

    def _fail(self, group: list[CommitRequest], error: Exception, code: int = 0) -> None:
        """Set the results of a group that is not committed: `code`, or the code of the error."""
        self._roll_back()
        failure = storage_error(error, self._lock.store)
        self._results = [(request, code or failure.code, failure.detail) for request in group]

    def _expire(self) -> None:
        """Fail the requests that have waited for the lock for too long. They were not written."""
        now = runtime.monotonic()
        late = [each for each in list(self._queue) if each.expires <= now and not each.is_finished]
        obstacle = self._lock.obstacle() if late else ""
        self._results = [(request, TRANSACTION_TIMED_OUT, obstacle) for request in late]
        self._deliver()

    def _resolve_doubt(self) -> None:
        """Overwrite a failed commit that may be complete on the disk.

        SQLite rolls it back, but would find it in its log after a crash. Its result is unknown until an empty commit
        has replaced it in the log.
        """
        if self._in_doubt:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("INSERT INTO commits SELECT max(version) + 1, x'' FROM commits")
            self._connection.execute("COMMIT")
            self._in_doubt = False

    def _commit_group(self, group: list[CommitRequest]) -> None:
        connection, log = self._connection, self._log
        connection.execute("BEGIN IMMEDIATE")
        log.load(connection)
        work = Applier(connection, log, self._lock.next_version(log.last))
        results = [(request, work.add(request), "") for request in group]
        if not work.accepted:
            connection.execute("ROLLBACK")
            self._results = results
            return
        written = work.finish()
        connection.execute("INSERT INTO commits VALUES (?, ?)", (work.group.version, written))
        self._trim()
        # A commit into removed files would be lost without an error, and one beside another index or lock file not be
        # seen by others. Python's own SQLite removes the log, too: it does not know of the connections of another one
        # in its process, and takes its last for the last of all.
        if not self.places.are_kept():
            self._roll_back()
            self._results = [(request, IO_ERROR, self.places.lost) for request in group]
            return
        self._lock.announce(work.group.version, changes_metadata=work.changes_metadata)
        self._results = results
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            self._results = []  # first: after an interrupt, they would count as those of a success
            self._in_doubt = not is_unwritten(error)
            self._fail(group, error, COMMIT_UNKNOWN_RESULT if self._in_doubt else 0)
            return
        log.append(work.group)
        self._checkpointer.record_commit(
            len(work.group.keys), len(written) + sum(request.size for request in group)
        )

    def _trim(self) -> None:
        """Delete old rows of the log. Rarely, since deleting many rows costs as much as deleting one."""
        if runtime.monotonic() < self._next_trim:
            return
        self._next_trim = runtime.monotonic() + _TRIM_SECONDS
        first = self._log.trim(runtime.time_ns() // 1000)
        if first is not None:
            self._connection.execute("DELETE FROM commits WHERE version < ?", (first,))

    def _roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):
            self._connection.execute("ROLLBACK")
