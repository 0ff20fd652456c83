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
from cq.store.embedded.engine.conflict_log import ConflictLog, Group, encode, overlaps
from cq.store.embedded.engine.wal import WalKeeper
from cq.store.embedded.file.lock_file import LockFile
from cq.store.embedded.snapshots.latest_version import Latest
from cq.store.embedded.writes.changes import Changes
from cq.store.embedded.writes.read_set import ReadSet

GROUP_TRANSACTIONS = 500
GROUP_BYTES = 16_000_000
WAIT_SECONDS = 30.0
"""How long a commit waits for the lock of all processes if its transaction has no timeout."""

_LOOK_SECONDS = 0.05
_ROUNDS = 3
_TRIM_SECONDS = 0.5


_NO_CHANGES = Changes()
_NO_READS = ReadSet()


class Request(FutureVoid):
    """One transaction on its way; the future of its commit."""

    __slots__ = (
        "changes",
        "changes_metadata",
        "committer",
        "done",
        "expires",
        "leads",
        "order",
        "read_version",
        "reads",
        "size",
        "version",
        "waits",
    )

    def __init__(
        self, changes: Changes, reads: ReadSet, size: int, done: Callable[[Request, FDBError | None], None]
    ) -> None:
        super().__init__()
        self.changes = changes
        self.size = size
        self.done = done  # called with the error, or None, before the future is ready
        self.reads = reads
        self.expires = runtime.monotonic() + WAIT_SECONDS  # when it no longer waits for the lock
        self.read_version: int | None = None  # None: it has read nothing
        self.changes_metadata = False
        self.version = -1
        self.order = 0
        self.committer: Committer | None = None
        self.leads = False
        self.waits = False

    @property
    def versionstamp(self) -> bytes:
        """The version of its group and its place in it, ten bytes."""
        return self.version.to_bytes(8, "big") + self.order.to_bytes(2, "big")

    def block_until_ready(self) -> None:
        """Wait, and lead the next group if the leader passes on to this one."""
        self._land()
        if self._done:  # perhaps cancelled and still queued: then it must not become the leader
            return
        self.waits = True
        try:
            while not self._done:
                self._gate.acquire()
                if self._done:
                    self._gate.release()
                elif self.leads and self.committer is not None:
                    self.committer.lead(self)
        except BaseException:
            if self.committer is not None:
                self.committer.excuse(self)
            raise

    def cancel(self) -> None:
        """Does nothing: a commit that is under way cannot be called back."""

    def appoint(self) -> None:
        """Make the thread that waits for it the leader."""
        self.leads = True
        self._gate.release()

    def excuse(self) -> bool:
        """Nobody waits any more; whether somebody else must lead."""
        self.waits = False
        was_leader, self.leads = self.leads, False
        if was_leader:
            # Appointing has opened the gate, and whoever was to go through it may not have closed it again.
            self._gate.acquire(blocking=False)
        return was_leader

    def finish(self, code: int, detail: str = "") -> None:
        """It is committed (0), or failed."""
        done, error = self.done, FDBError(code, detail) if code else None
        # Whoever keeps the future must not keep the transaction and all that it wrote.
        self.changes, self.reads, self.done = _NO_CHANGES, _NO_READS, _nothing
        try:
            done(self, error)
        finally:
            self.settle(error=error)


class Committer:
    """All commits of one database in this process."""

    def __init__(self, connection: sqlite3.Connection, lock: LockFile, latest: Latest) -> None:
        self._connection = connection
        self._lock = lock
        self._latest = latest
        self._wal = WalKeeper(connection, lock)
        self._log = ConflictLog()
        self._mutex = threading.Lock()
        self._at_rest = threading.Condition(self._mutex)
        self._queue: deque[Request] = deque()
        self._leading = False
        self._closed = False
        self._next_trim = 0.0
        self._sent: list[int] = []  # the results of the group whose COMMIT has begun
        self._in_doubt = False  # whether the log may end with a commit that was said to have failed

    def submit(self, request: Request) -> None:
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

    def lead(self, own: Request | None) -> None:
        """Commit group after group until there is nothing left, or one's own part is done and another takes over."""
        rounds = 0
        try:
            if own is not None:
                own.leads = False
            while self._is_any_waiting():
                self._commit()
                rounds += 1
                if own is not None and own._done and self._pass_on(rounds):
                    return
        except BaseException:
            self._start_helper()
            raise

    def excuse(self, request: Request) -> None:
        """The thread waiting for it has been interrupted; another must lead if it was to."""
        with self._mutex:
            was_leader = request.excuse()
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

    def _is_any_waiting(self) -> bool:
        """Whether there is anything to commit; if there is nothing, the leader's office ends."""
        with self._mutex:
            if not self._queue:
                self._leading = False
                self._at_rest.notify_all()
            return self._leading

    def _take(self) -> list[Request]:
        """The next group."""
        group: list[Request] = []
        size = 0
        with self._mutex:
            while self._queue and len(group) < GROUP_TRANSACTIONS and size < GROUP_BYTES:
                group.append(self._queue.popleft())
                size += group[-1].size
        return group

    def _pass_on(self, rounds: int) -> bool:
        with self._mutex:
            if not self._queue:
                return False
            for request in self._queue:
                if request.waits:
                    request.appoint()
                    return True
        if rounds < _ROUNDS:
            return False
        self._start_helper()
        return True

    def _start_helper(self) -> None:
        """Have a thread lead: nobody waits for the commits in the queue, but they must be made all the same."""
        threading.Thread(target=self.lead, args=(None,), name="cq-commit", daemon=True).start()

    # Committing

    def _commit(self) -> None:
        """Commit what waits once the lock is there: while others had it, more may have come."""
        group: list[Request] = []
        codes: list[int] = []
        detail, begun = "", False
        self._sent = []  # before anything can fail: the results of the group before are not those of this one
        try:
            if not self._lock.acquire(_LOOK_SECONDS):
                self._expire()
                return
            try:
                group = self._take()
                self._settle_doubt()
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
                group = group or self._take()
            if self._sent and not self._connection.in_transaction:
                codes = self._sent  # interrupted after the COMMIT: to try again would be to commit twice
            self._roll_back()
            raise
        finally:
            for request, code in zip(group, codes or [COMMIT_UNKNOWN_RESULT] * len(group), strict=True):
                request.finish(code, detail if code else "")
        self._wal.tend()

    def _expire(self) -> None:
        """Fail the commits that have waited for the lock as long as they may; nothing of them was written."""
        now = runtime.monotonic()
        with self._mutex:
            late = [request for request in self._queue if request.expires <= now]
            self._queue = deque(request for request in self._queue if request.expires > now)
        obstacle = self._lock.obstacle() if late else ""
        for request in late:
            request.finish(TRANSACTION_TIMED_OUT, obstacle)

    def _settle_doubt(self) -> None:
        """Write something else in the place of a commit that failed when all of it may have been on the disk.

        SQLite takes it back, but would find it there after a crash. So it is unknown how it will end, until this has.
        """
        if self._in_doubt:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("INSERT INTO commits SELECT max(version) + 1, x'' FROM commits")
            self._connection.execute("COMMIT")
            self._in_doubt = False

    def _commit_group(self, group: list[Request]) -> list[int]:
        connection, log = self._connection, self._log
        connection.execute("BEGIN IMMEDIATE")
        log.load(connection)
        work = _Work(log, Applier(connection), self._latest.next(log.last))
        codes = [work.add(request) for request in group]
        if not work.accepted:
            connection.execute("ROLLBACK")
            return codes
        written = work.finish()
        connection.execute("INSERT INTO commits VALUES (?, ?)", (work.version, written))
        self._trim()
        self._lock.announce(work.version, changes_metadata=work.changes_metadata)
        self._sent = codes
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._in_doubt = not is_unwritten(error)
            raise
        log.append(Group(work.version, work.keys, work.ranges, len(written)))
        self._wal.wrote(len(work.keys), len(written) + sum(request.size for request in group))
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


def _nothing(_: Request, __: FDBError | None) -> None:
    """What is left to do when a commit has its result."""


class _Work:
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

    def add(self, request: Request) -> int:
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

    def _check(self, request: Request) -> int:
        # Without a read version it has seen nothing that a commit before it could have changed.
        if request.read_version is None or not request.reads:
            return 0
        code = self._log.check(request.read_version, request.reads)
        return code or (NOT_COMMITTED if self._conflicts(request) else 0)

    def _conflicts(self, request: Request) -> bool:
        """Whether it has read what one before it in the group writes."""
        reads = request.reads
        if not reads.keys.isdisjoint(self.keys):
            return True
        if reads.ranges and len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return overlaps(reads, self._sorted, self.ranges)
