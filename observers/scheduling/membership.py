"""Membership: workers register in the store, beat, and divide all tasks among themselves.

Each worker has a row in the store that it rewrites with every beat, from the loop that does its work. The same
transaction reads the rows of the others. A worker is gone if its row has not changed for several reads and long enough
by the reader's clock, so clocks of two machines are never compared. The first worker in rendezvous order (Thaler and
Ravishankar 1998) owns a task, so few tasks move when a worker comes or goes.

Ownership only saves duplicate work; correctness does not depend on it. Two workers on one bucket do no harm when their
views differ or one is late: a pass reads the bucket's state with a conflict range and writes it, so one of two fails.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final

from cq import runtime
from cq.encoding import codec
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, version_of
from cq.keys.membership import BEAT_SECONDS, WORKER_ID_BYTES, WORKERS_CHANGED, worker
from cq.observers.scheduling.members import (
    ROLES,
    Member,
    MemberReport,
    TaskId,
    kinds_of,
    order,
    read_members,
)
from cq.observers.telemetry.bus import emit
from cq.store.api import Database, Transaction
from cq.store.transact import transact, transact_versioned
from cq.store.version_clock import clock_of

_BUSY: Final = 4  # a busy worker beats this many times as often, so that its death is detected sooner
# The first beats come as often as a busy worker's: new workers die more often than others.
_FIRST_BEATS: Final = 10
_GONE_BEATS: Final = 3  # a worker that misses this many beats is gone
_OLD_BEATS: Final = 8  # at first sight, a worker whose row is this many beats old is gone
# A row removed after this many missed beats: the worker has died, not left in good order.
_LATE_BEATS: Final = 2
log = logging.getLogger("cq.worker")

_OFFSET: Final = INCOMPLETE_VERSIONSTAMP[VERSIONSTAMP_BYTES:]


@dataclass(slots=True)
class _Seen:
    """The latest beat seen of another worker: since when it is unchanged, by the own clock, and in how many reads."""

    stamp: bytes
    since: float
    reads: int = 0


class Membership:
    """A worker's registration, and its view of the other workers; for use by one thread.

    Args:
        db: a database of either store.
        roles, queues: the worker's roles, and the queues that it works on (empty for all).
        every: seconds between its beats while it is idle.
        identity: a unique name; a worker that replaces one known to be dead passes that one's name, and so takes over
            its row and its tasks at once. None for a random one.

    Attributes:
        me: this worker, as of its latest beat.
        others: the other live workers, as of the latest beat.
        next_beat: time of the next beat, of `runtime.monotonic`.
        version: of the latest beat.
    """

    def __init__(
        self,
        db: Database,
        roles: Iterable[str] = ROLES,
        queues: Iterable[str] = (),
        *,
        every: float = BEAT_SECONDS,
        identity: str | None = None,
    ) -> None:
        self.id = blake2b(
            (identity or runtime.token_bytes(16).hex()).encode(), digest_size=WORKER_ID_BYTES
        ).digest()
        self.every = every
        self._db, self._versions = db, clock_of(db)
        self._key = worker(self.id)
        self._beats = 0
        mine, named = frozenset(roles), frozenset(queues) or None
        host, pid = socket.gethostname(), os.getpid()
        # With all of its roles, even while it beats without them, see `_limited`.
        self._whole = Member(self.id, b"", every, mine, kinds_of(mine), named, host, pid, MemberReport())
        self.me = self._whole
        self._seen: dict[bytes, _Seen] = {}
        self.others: list[Member] = []
        self._shape: object = None
        self.next_beat = runtime.monotonic()
        self.version = 0

    def beat(self, report: MemberReport, *, is_busy: bool = False) -> bool:
        """Write the own row and read the others; returns whether owners of tasks may have changed.

        A busy worker beats again sooner, and its row says so. Removes the rows of dead workers. Raises the
        store's `FDBError`.
        """
        self._beats += 1
        every = self.every / _BUSY if is_busy or self._beats <= _FIRST_BEATS else self.every
        self.me = _limited(replace(self._whole, report=report, every=every))
        began = runtime.monotonic()
        members, self.version = transact_versioned(self._db, self._beat)
        self._versions.observe(self.version, began)
        self.next_beat = runtime.monotonic() + every
        others = [member for member in members if member.id != self.id]
        gone = [member for member in others if self._is_gone(member)]
        self._emit_changes(others, gone)
        self._seen = {member.id: self._seen[member.id] for member in others}
        self.others = [member for member in others if member not in gone]
        if gone:
            transact(self._db, partial(_remove, gone=gone))
        shape = {(each.id, each.kinds, each.queues, each.report.names) for each in [self.me, *self.others]}
        changed, self._shape = shape != self._shape, shape
        return changed

    def is_mine(self, task: TaskId) -> bool:
        """Whether this worker owns a task, as of the latest beat."""
        return order(task, [self.me, *self.others])[:1] == [self.id]

    def is_among(self, task: TaskId, number: int) -> bool:
        """Whether this worker is among the first `number` workers in the task's order."""
        return self.id in order(task, [self.me, *self.others])[:number]

    def leave(self, seconds: float) -> None:
        """Remove the own row, trying for up to `seconds`, so that the others take over its tasks at once."""

        def leave(tr: Transaction) -> None:
            tr.options.set_timeout(int(seconds * 1000))
            tr.clear(self._key)
            tr.set_versionstamped_value(WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)

        transact(self._db, leave)

    def hurry(self) -> None:
        """Beat as soon as possible: a worker has joined or left."""
        self.next_beat = runtime.monotonic()

    def _beat(self, tr: Transaction) -> list[Member]:
        members = read_members(tr.snapshot)
        tr.set_versionstamped_value(self._key, bytes(VERSIONSTAMP_BYTES) + self.me.to_bytes() + _OFFSET)
        # A new worker, or one whose row another worker has removed: the others' watches must fire.
        if all(member.id != self.id for member in members):
            tr.set_versionstamped_value(WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)
        return members

    def _emit_changes(self, found: list[Member], gone: list[Member]) -> None:
        """Emit events for workers that have joined, left or died since the previous beat."""
        if self._shape is None:  # the first beat: the other workers are not new
            return
        known, there = {member.id for member in self.others}, {member.id for member in found}
        for member in found:
            if member.id not in known and member not in gone:
                _emit(member, "worker_joined")
        for member in self.others:
            silent = runtime.monotonic() - self._seen[member.id].since
            if member.id not in there and silent <= max(self.every, _LATE_BEATS * member.every):
                _emit(member, "worker_left")
            elif member.id not in there or any(member.id == each.id for each in gone):
                _emit(member, "worker_gone")

    def _is_gone(self, member: Member) -> bool:
        """Whether a worker has missed `_GONE_BEATS` beats; at first sight, whether its row is old by versions.

        A jump of the store's versions does not make a row old: only time that the version clock has observed counts.
        """
        now = runtime.monotonic()
        seen = self._seen.get(member.id)
        if seen is None or seen.stamp != member.stamp:
            seen = self._seen[member.id] = _Seen(member.stamp, now)
        else:
            seen.reads += 1
        if not seen.reads:
            age = self._versions.sure_age(version_of(member.stamp), self.version)
            return age > _OLD_BEATS * member.every
        return seen.reads >= _GONE_BEATS and now - seen.since > _GONE_BEATS * member.every


def _emit(member: Member, event: str) -> None:
    emit(event, worker=member.id.hex(), host=member.host, pid=member.pid)


def _limited(member: Member) -> Member:
    """The member, without any role if the list of queues that it leaves alone does not fit into its row.

    Work left undone but not listed in the row would be lost: the other workers would assume that this worker does it.
    """
    if len(member.to_bytes()) <= codec.MAX_VALUE_BYTES - 1_000:
        return member
    log.warning(
        "this worker leaves more queues alone than its row can list, so it stays idle: start it for fewer, named queues"
    )
    return replace(
        member, roles=frozenset(), kinds=frozenset(), report=MemberReport(facts=member.report.facts)
    )


def _remove(tr: Transaction, gone: list[Member]) -> None:
    """Remove the rows of dead workers, except rows that have changed since they were read."""
    stored = [(member, tr.get(worker(member.id))) for member in gone]
    left = [
        member
        for member, row in stored
        if row.value is not None and row.value[:VERSIONSTAMP_BYTES] == member.stamp
    ]
    for member in left:
        tr.clear(worker(member.id))
    if left:
        tr.set_versionstamped_value(WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)
