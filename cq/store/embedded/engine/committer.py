"""Commits: many transactions become one SQLite transaction with one sync of the disk.

There is no thread for it. Whoever commits while nobody else does becomes the leader and commits all that waits; who
comes meanwhile is in the next group. A leader that has done its own work passes on to one of those that wait, so
that nobody works for the others for ever.

A group, under the lock of all processes:

1. read the last version; take over what other processes have written since;
2. check each transaction in order against the log and against those before it in the group;
3. apply those that pass; all get one version, and their place in the group is the rest of their versionstamp;
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
"""How long a commit waits for the lock of all processes if its transaction has no timeout."""

_LOCK_CHECK_SECONDS = 0.05
_MAX_ROUNDS = 3
_TRIM_SECONDS = 0.5


_NO_CHANGES = Changes()
_NO_READS = ReadSet()


class CommitRequest(FutureVoid):
    """One transaction on its way; the future of its commit."""

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
        self.on_done = done  # called with the error, or None, before the future is ready
        self.reads = reads
        self.expires = runtime.monotonic() + WAIT_SECONDS  # when it no longer waits for the lock
        self.read_version: int | None = None  # None: it has read nothing
        self.changes_metadata = False
        self.version = -1
        self.order = 0
        self.committer: Committer | None = None
        self.is_leader = False
        self.is_awaited = False

    @property
    def versionstamp(self) -> bytes:
        """The version of its group and its place in it, ten bytes."""
        return self.version.to_bytes(8, "big") + self.order.to_bytes(2, "big")

    def block_until_ready(self) -> None:
        """Wait, and lead the next group if the leader passes on to this one."""
        self._land()
        if self._done:  # perhaps cancelled and still queued: then it must not become the leader
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

    def cancel(self) -> None:
        """Does nothing: a commit that is under way cannot be called back."""

    def appoint(self) -> None:
        """Make the thread that waits for it the leader."""
        self.is_leader = True
        self._gate.release()

    def stop_waiting(self) -> bool:
        """Nobody waits any more; whether somebody else must lead."""
        self.is_awaited = False
        was_leader, self.is_leader = self.is_leader, False
        if was_leader:
            # Appointing has opened the gate, and whoever was to go through it may not have closed it again.
            self._gate.acquire(blocking=False)
        return was_leader

    def finish(self, code: int, detail: str = "") -> None:
        """It is committed (0), or failed."""
        done, error = self.on_done, FDBError(code, detail) if code else None
        # Whoever keeps the future must not keep the transaction and all that it wrote.
        self.changes, self.reads, self.on_done = _NO_CHANGES, _NO_READS, _nothing
        try:
            done(self, error)
        finally:
            self.settle(error=error)


class Committer:
    """All commits of one database in this process."""

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
        self._codes_if_committed: list[int] = []  # the results of the group whose COMMIT has begun
        self._in_doubt = False  # whether the log may end with a commit that was said to have failed

    def submit(self, request: CommitRequest) -> None:
        """Commit it now with all that waits, or leave it to the leader there is."""
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
        """Commit group after group until there is nothing left, or one's own part is done and another takes over."""
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
        """The thread waiting for it has been interrupted; another must lead if it was to."""
        with self._mutex:
            was_leader = request.stop_waiting()
        if was_leader:
            self._start_helper()

    def close(self) -> None:
        """Let the commits under way finish, and refuse others."""
        with self._mutex:
            self._closed = True
            self._at_rest.wait_for(lambda: not self._leading)
            self._leading = True
        self._connection.close()

    # Leadership

    def _has_queued(self) -> bool:
        """Whether there is anything to commit; if there is nothing, the leader's office ends."""
        with self._mutex:
            if not self._queue:
                self._leading = False
                self._at_rest.notify_all()
            return self._leading

    def _take_group(self) -> list[CommitRequest]:
        """The next group."""
        group: list[CommitRequest] = []
        size = 0
        with self._mutex:
            while self._queue and len(group) < GROUP_TRANSACTIONS and size < GROUP_BYTES:
                group.append(self._queue.popleft())
                size += group[-1].size
        return group

    def _appoint_successor(self, rounds: int) -> bool:
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
        """Have a thread lead: nobody waits for the commits in the queue, but they must be made all the same."""
        threading.Thread(target=self.lead, args=(None,), name="cq-commit", daemon=True).start()

    # Committing

    def _commit(self) -> None:
        """Commit what waits once the lock is there: while others had it, more may have come."""
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
            if isinstance(error, OSError):  # of the lock: without it nobody can go on
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
        """Fail the commits that have waited for the lock as long as they may; nothing of them was written."""
        now = runtime.monotonic()
        with self._mutex:
            late = [request for request in self._queue if request.expires <= now]
            self._queue = deque(request for request in self._queue if request.expires > now)
        obstacle = self._lock.obstacle() if late else ""
        for request in late:
            request.finish(TRANSACTION_TIMED_OUT, obstacle)

    def _resolve_doubt(self) -> None:
        """Write something else in the place of a commit that failed when all of it may have been on the disk.

        SQLite takes it back, but would find it there after a crash. So it is unknown how it will end, until this has.
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
        """Drop old rows of the log, seldom: it is the same work for many as for one."""
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
    """What is left to do when a commit has its result."""


class _GroupBuilder:
    """One group on its way: what its transactions have written so far, and the checks of the next one."""

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
        """Apply a transaction, or give the error that keeps it out."""
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
        """Write the rest; the row for the log."""
        self._applier.flush()
        return encode(self.keys, self.ranges)

    def _check(self, request: CommitRequest) -> int:
        # Without a read version it has seen nothing that a commit before it could have changed.
        if request.read_version is None or not request.reads:
            return 0
        code = self._log.check(request.read_version, request.reads)
        return code or (NOT_COMMITTED if self._conflicts(request) else 0)

    def _conflicts(self, request: CommitRequest) -> bool:
        """Whether it has read what one before it in the group writes."""
        reads = request.reads
        if not reads.keys.isdisjoint(self.keys):
            return True
        if reads.ranges and len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return overlaps(reads, self._sorted, self.ranges)
