"""Group commit: many transactions become one SQLite transaction with one sync of the disk.

There is no commit thread. A thread that commits while no other thread does becomes the leader, and commits all queued
requests; requests that arrive during a commit are in the next group. After its own commit, a leader appoints a waiting
thread as its successor, so that no thread works for the others for ever.

The steps for a group, with the commit lock of all processes held:

1. read the latest version and the commits of other processes since the previous group;
2. check each transaction in order for conflicts with the log and with earlier transactions of the group;
3. apply the accepted transactions; all get one version, and their order completes their versionstamps;
4. add one row to the log, announce the version to all processes, and commit.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable

from cq import runtime
from cq.errors import StoreError
from cq.store.embedded.binding.error import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    TRANSACTION_TIMED_OUT,
    FDBError,
    is_unwritten,
    storage_error,
)
from cq.store.embedded.binding.future import FutureVoid
from cq.store.embedded.binding.keys import Range
from cq.store.embedded.engine.applier import Applier
from cq.store.embedded.engine.conflict_log import CommittedGroup, ConflictLog, encode, overlaps
from cq.store.embedded.engine.wal import Checkpointer
from cq.store.embedded.file.lock_file import LockFile
from cq.store.embedded.snapshots.latest_version import LatestVersion
from cq.store.embedded.writes.changes import Changes
from cq.store.embedded.writes.read_set import ReadSet

GROUP_TRANSACTIONS = 500
GROUP_BYTES = 16_000_000
WAIT_SECONDS = 30.0
"""The time a commit waits for the lock of all processes, if its transaction has no timeout."""

_LOCK_CHECK_SECONDS = 0.05
_MAX_ROUNDS = 3
_TRIM_SECONDS = 0.5


_NO_CHANGES = Changes()
_NO_READS = ReadSet()


class CommitRequest(FutureVoid):
    """One transaction to commit, and the future of its commit."""

    __slots__ = (
        "changes",
        "changes_metadata",
        "committer",
        "expires",
        "is_awaited",
        "is_leader",
        "on_done",
        "order",
        "read_version",
        "reads",
        "size",
        "version",
    )

    def __init__(
        self,
        changes: Changes,
        reads: ReadSet,
        size: int,
        done: Callable[[CommitRequest, FDBError | None], None],
    ) -> None:
        super().__init__()
        self.changes = changes
        self.size = size
        self.on_done = done  # called with the error or None, before the future is ready
        self.reads = reads
        self.expires = runtime.monotonic() + WAIT_SECONDS  # when it stops waiting for the lock
        self.read_version: int | None = None  # None: it has not read
        self.changes_metadata = False
        self.version = -1
        self.order = 0
        self.committer: Committer | None = None
        self.is_leader = False
        self.is_awaited = False

    @property
    def versionstamp(self) -> bytes:
        """The version of its group and its order in the group, ten bytes."""
        return self.version.to_bytes(8, "big") + self.order.to_bytes(2, "big")

    def block_until_ready(self) -> None:
        """Wait; commit the next groups if this thread is appointed as the leader."""
        self._take()
        if self._done:  # it may be cancelled and still queued: then it must not become the leader
            return
        self.is_awaited = True
        try:
            while not self._done:
                self._gate.acquire()
                if self._done:
                    self._gate.release()
                elif self.is_leader and self.committer is not None:
                    self.committer.lead(self)
        except BaseException:
            if self.committer is not None:
                self.committer.stop_waiting(self)
            raise

    def appoint(self) -> None:
        """Make the waiting thread of this request the leader."""
        self.is_leader = True
        self._gate.release()

    def stop_waiting(self) -> bool:
        """Record that no thread waits; return whether that thread was appointed, so that another one must lead."""
        self.is_awaited = False
        was_leader, self.is_leader = self.is_leader, False
        if was_leader:
            # `appoint` has opened the gate, and the interrupted thread may not have closed it.
            self._gate.acquire(blocking=False)
        return was_leader

    def finish(self, code: int, detail: str = "") -> None:
        """Set the result: committed (0), or the code of an error."""
        done, error = self.on_done, FDBError(code, detail) if code else None
        # A caller that keeps the future must not keep the transaction and its writes in memory.
        self.changes, self.reads, self.on_done = _NO_CHANGES, _NO_READS, _nothing
        try:
            done(self, error)
        finally:
            self.settle(error=error)


class Committer:
    """Makes all commits of one database in this process."""

    def __init__(self, connection: sqlite3.Connection, lock: LockFile, latest: LatestVersion) -> None:
        self._connection = connection
        self._lock = lock
        self._latest = latest
        self._checkpointer = Checkpointer(connection, lock)
        self._log = ConflictLog()
        self._mutex = threading.Lock()
        self._at_rest = threading.Condition(self._mutex)
        self._queue: deque[CommitRequest] = deque()
        self._leading = False
        self._closed = False
        self._next_trim = 0.0
        self._codes_if_committed: list[int] = []  # the results of the group, once its COMMIT has begun
        self._in_doubt = False  # whether a commit reported as failed may reappear after a crash

    def submit(self, request: CommitRequest) -> None:
        """Commit it now with all queued requests, or queue it if another thread leads."""
        request.committer = self
        with self._mutex:
            if self._closed:
                raise StoreError("the store is closed: open it again")
            self._queue.append(request)
            if self._leading:
                return
            self._leading = True
        self.lead(request)

    def lead(self, own: CommitRequest | None) -> None:
        """Commit groups until the queue is empty, or until `own` is committed and another thread takes over."""
        rounds = 0
        try:
            if own is not None:
                own.is_leader = False
            while self._has_queued():
                self._commit()
                rounds += 1
                if own is not None and own._done and self._appoint_successor(rounds):
                    return
        except BaseException:
            self._start_helper()
            raise

    def stop_waiting(self, request: CommitRequest) -> None:
        """After an interrupt of the thread that waits for a request: start a helper if that thread was appointed."""
        with self._mutex:
            was_leader = request.stop_waiting()
        if was_leader:
            self._start_helper()

    def close(self) -> None:
        """Finish the queued commits, and reject later ones."""
        with self._mutex:
            self._closed = True
            self._at_rest.wait_for(lambda: not self._leading)
            self._leading = True
        self._connection.close()

    # Leadership

    def _has_queued(self) -> bool:
        """Whether there are queued requests; if not, this thread is no longer the leader."""
        with self._mutex:
            if not self._queue:
                self._leading = False
                self._at_rest.notify_all()
            return self._leading

    def _take_group(self) -> list[CommitRequest]:
        """Take the requests of the next group from the queue."""
        group: list[CommitRequest] = []
        size = 0
        with self._mutex:
            while self._queue and len(group) < GROUP_TRANSACTIONS and size < GROUP_BYTES:
                group.append(self._queue.popleft())
                size += group[-1].size
        return group

    def _appoint_successor(self, rounds: int) -> bool:
        """Let another thread lead, if requests are queued; return whether it does."""
        with self._mutex:
            if not self._queue:
                return False
            for request in self._queue:
                if request.is_awaited:
                    request.appoint()
                    return True
        if rounds < _MAX_ROUNDS:
            return False
        self._start_helper()
        return True

    def _start_helper(self) -> None:
        """Start a thread that leads: no thread waits for the queued commits, but they must be made."""
        threading.Thread(target=self.lead, args=(None,), name="cq-commit", daemon=True).start()

    # Committing

    def _commit(self) -> None:
        """Acquire the lock, and then commit the queued requests; more may be queued during the wait."""
        group: list[CommitRequest] = []
        codes: list[int] = []
        detail, begun = "", False
        # Reset before anything can fail: these are the results of the previous group.
        self._codes_if_committed = []
        try:
            if not self._lock.acquire(_LOCK_CHECK_SECONDS):
                self._expire()
                return
            try:
                group = self._take_group()
                self._resolve_doubt()
                begun = True
                codes = self._commit_group(group)
                self._lock.notify()
            finally:
                self._lock.release()
        except sqlite3.Error as error:
            failure = storage_error(error, self._lock.store)
            detail = failure.detail
            if not (begun and self._in_doubt):
                codes = [failure.code] * len(group)
            self._roll_back()
        except BaseException as error:
            if isinstance(error, OSError):  # the lock cannot be used: fail the queued commits
                group = group or self._take_group()
            if self._codes_if_committed and not self._connection.in_transaction:
                # Interrupted after the COMMIT: another try would commit the group twice.
                codes = self._codes_if_committed
            self._roll_back()
            raise
        finally:
            for request, code in zip(group, codes or [COMMIT_UNKNOWN_RESULT] * len(group), strict=True):
                request.finish(code, detail if code else "")
        self._checkpointer.checkpoint_if_due()

    def _expire(self) -> None:
        """Fail the requests that have waited for the lock for too long. They were not written."""
        now = runtime.monotonic()
        with self._mutex:
            late = [request for request in self._queue if request.expires <= now]
            self._queue = deque(request for request in self._queue if request.expires > now)
        obstacle = self._lock.obstacle() if late else ""
        for request in late:
            request.finish(TRANSACTION_TIMED_OUT, obstacle)

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

    def _commit_group(self, group: list[CommitRequest]) -> list[int]:
        connection, log = self._connection, self._log
        connection.execute("BEGIN IMMEDIATE")
        log.load(connection)
        work = _GroupBuilder(log, Applier(connection), self._latest.next(log.last))
        codes = [work.add(request) for request in group]
        if not work.accepted:
            connection.execute("ROLLBACK")
            return codes
        written = work.finish()
        connection.execute("INSERT INTO commits VALUES (?, ?)", (work.version, written))
        self._trim()
        self._lock.announce(work.version, changes_metadata=work.changes_metadata)
        self._codes_if_committed = codes
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._in_doubt = not is_unwritten(error)
            raise
        log.append(CommittedGroup(work.version, work.keys, work.ranges, len(written)))
        self._checkpointer.record_commit(
            len(work.keys), len(written) + sum(request.size for request in group)
        )
        return codes

    def _trim(self) -> None:
        """Delete old rows of the log. Rarely, since deleting many rows costs as much as deleting one."""
        if runtime.monotonic() < self._next_trim:
            return
        self._next_trim = runtime.monotonic() + _TRIM_SECONDS
        first = self._log.trim(runtime.time_ns() // 1000)
        if first is not None:
            self._connection.execute("DELETE FROM commits WHERE version < ?", (first,))

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")


def _nothing(_: CommitRequest, __: FDBError | None) -> None:
    """The `on_done` of a request with a result."""


class _GroupBuilder:
    """Builds a group: collects the writes of its transactions, and checks each new transaction against them."""

    def __init__(self, log: ConflictLog, applier: Applier, version: int) -> None:
        self.version = version
        self.accepted = 0
        self.changes_metadata = False
        self.keys: set[bytes] = set()
        self._sorted: list[bytes] = []
        self.ranges: list[Range] = []
        self._log = log
        self._applier = applier

    def add(self, request: CommitRequest) -> int:
        """Apply a transaction; return 0, or the error code of a rejected one."""
        code = self._check(request)
        if code:
            return code
        request.version, request.order = self.version, self.accepted
        self.accepted += 1
        self.changes_metadata |= request.changes_metadata
        changes = request.changes
        stamped = self._applier.apply(changes, request.versionstamp)
        self.keys.update(changes.write_keys, stamped)
        self.ranges += changes.write_ranges
        return 0

    def finish(self) -> bytes:
        """Write the collected values; return the row for the log."""
        self._applier.flush()
        return encode(self.keys, self.ranges)

    def _check(self, request: CommitRequest) -> int:
        # A transaction without reads cannot conflict.
        if request.read_version is None or not request.reads:
            return 0
        code = self._log.check(request.read_version, request.reads)
        return code or (NOT_COMMITTED if self._conflicts(request) else 0)

    def _conflicts(self, request: CommitRequest) -> bool:
        """Whether it has read a key that an earlier transaction of the group writes."""
        reads = request.reads
        if not reads.keys.isdisjoint(self.keys):
            return True
        if reads.ranges and len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return overlaps(reads, self._sorted, self.ranges)
