"""Who works on what: workers register in the store, beat, and share out all tasks among themselves.

Each worker keeps a row in the store that it writes anew with every beat, from the loop that does its work. It reads
the rows of the others with the same transaction, and takes for gone whose row has not changed for several of its own
reads and long enough by its own clock: no clocks of two machines are compared. A task belongs to the worker that comes
first in rendezvous order (Thaler and Ravishankar 1998), so that a worker more or less moves few tasks.

All of this is advice about who should work. That two workers on one bucket do no harm, when their views differ or one
of them is late, is the pass's doing: it reads the bucket's state for real and writes it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final

from cq import keys, runtime
from cq.encoding import codec
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, version_of
from cq.observers.scheduling.members import (
    BEAT_SECONDS,
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

_BUSY: Final = 4  # times as often while it has something to do, and is missed so much sooner
_FIRST_BEATS: Final = 10  # that come as soon: those who have just begun die more often than others
_GONE_BEATS: Final = 3
_OLD_BEATS: Final = 8  # that a row is so old says that its worker is gone, also at first sight
_LATE_BEATS: Final = 2  # who has not beaten for so long before its row went has not left in good order
log = logging.getLogger("cq.worker")

_OFFSET: Final = INCOMPLETE_VERSIONSTAMP[VERSIONSTAMP_BYTES:]


@dataclass(slots=True)
class _Seen:
    """What a worker has seen of another one: since when its beat is the same, by its own clock, in how many reads."""

    stamp: bytes
    since: float
    reads: int = 0


class Membership:
    """A worker's registration, and the others as it sees them; to be used by one thread.

    Args:
        db: a database of either store.
        roles, queues: what the worker does, and for which queues (none for all).
        every: seconds between its beats while it has nothing to do.
        identity: a name that is this worker's alone; one that is started in place of another one which is known to be
            dead takes over its row, and so its tasks, at once. None for one of its own.
        clock: of this process, in seconds.

    Attributes:
        me: this worker, as of its latest beat.
        others: the workers that live, but this one, as of the latest beat.
        next_beat: when to beat again, by the clock.
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
        clock: Callable[[], float] = runtime.monotonic,
    ) -> None:
        self.id = blake2b(
            (identity or runtime.token_bytes(16).hex()).encode(), digest_size=keys.WORKER_ID_BYTES
        ).digest()
        self.every = every
        self._db, self._clock, self._versions = db, clock, clock_of(db)
        self._key = keys.worker(self.id)
        self._roles, self._beats = frozenset(roles), 0
        named = frozenset(queues) or None
        self.me = Member(
            self.id,
            b"",
            every,
            self._roles,
            kinds_of(self._roles),
            named,
            socket.gethostname(),
            os.getpid(),
            MemberReport(),
        )
        self._seen: dict[bytes, _Seen] = {}
        self.others: list[Member] = []
        self._shape: object = None
        self.next_beat = clock()
        self.version = 0

    def beat(self, report: MemberReport, *, is_busy: bool = False) -> bool:
        """Write the own row and look at the others; whether tasks may belong to others than before.

        A worker that is busy says that it will beat again soon. Rows of workers that are gone are removed. Raises the
        store's `FDBError`.
        """
        self._beats += 1
        every = self.every / _BUSY if is_busy or self._beats <= _FIRST_BEATS else self.every
        kinds = kinds_of(self._roles)
        self.me = _that_fits(replace(self.me, roles=self._roles, kinds=kinds, report=report, every=every))
        began = runtime.monotonic()
        members, self.version = transact_versioned(self._db, self._beat)
        self._versions.observe(self.version, began)
        self.next_beat = self._clock() + every
        others = [member for member in members if member.id != self.id]
        gone = [member for member in others if self._is_gone(member)]
        self._tell(others, gone)
        self._seen = {member.id: self._seen[member.id] for member in others}
        self.others = [member for member in others if member not in gone]
        if gone:
            transact(self._db, partial(_remove, gone=gone))
        shape = {(each.id, each.kinds, each.queues, each.report.names) for each in [self.me, *self.others]}
        changed, self._shape = shape != self._shape, shape
        return changed

    def is_mine(self, task: TaskId) -> bool:
        """Whether a task belongs to this worker, as of the latest beat."""
        return order(task, [self.me, *self.others])[:1] == [self.id]

    def is_among(self, task: TaskId, number: int) -> bool:
        """Whether this worker is one of the first so many that a task could belong to."""
        return self.id in order(task, [self.me, *self.others])[:number]

    def leave(self, seconds: float) -> None:
        """Take the own row away, trying for so long: the others share out its tasks at once."""

        def leave(tr: Transaction) -> None:
            tr.options.set_timeout(int(seconds * 1000))
            tr.clear(self._key)
            tr.set_versionstamped_value(keys.WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)

        transact(self._db, leave)

    def hurry(self) -> None:
        """Beat as soon as possible: somebody has come or gone."""
        self.next_beat = self._clock()

    def _beat(self, tr: Transaction) -> list[Member]:
        members = read_members(tr.snapshot)
        tr.set_versionstamped_value(self._key, bytes(VERSIONSTAMP_BYTES) + self.me.to_bytes() + _OFFSET)
        if all(member.id != self.id for member in members):  # new, or taken for gone
            tr.set_versionstamped_value(keys.WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)
        return members

    def _tell(self, found: list[Member], gone: list[Member]) -> None:
        """Say who has come and who has gone since the beat before."""
        if self._shape is None:
            return
        known, there = {member.id for member in self.others}, {member.id for member in found}
        for member in found:
            if member.id not in known and member not in gone:
                _tell_of(member, "worker_joined")
        for member in self.others:
            silent = self._clock() - self._seen[member.id].since
            if member.id not in there and silent <= max(self.every, _LATE_BEATS * member.every):
                _tell_of(member, "worker_left")
            elif member.id not in there or any(member.id == each.id for each in gone):
                _tell_of(member, "worker_gone")

    def _is_gone(self, member: Member) -> bool:
        """Whether a worker has not beaten for long; a row of long ago, by the store's versions, at first sight.

        A jump of versions makes no row old: what this process has not seen of it counts as watched from now on.
        """
        now = self._clock()
        seen = self._seen.get(member.id)
        if seen is None or seen.stamp != member.stamp:
            seen = self._seen[member.id] = _Seen(member.stamp, now)
        else:
            seen.reads += 1
        if not seen.reads:
            age = self._versions.sure_age(version_of(member.stamp), self.version)
            return age > _OLD_BEATS * member.every
        return seen.reads >= _GONE_BEATS and now - seen.since > _GONE_BEATS * member.every


def _tell_of(member: Member, event: str) -> None:
    emit(event, worker=member.id.hex(), host=member.host, pid=member.pid)


def _that_fits(member: Member) -> Member:
    """The member, if its row can say all that it leaves alone; else it does nothing.

    What it cannot say the others would not know, and nobody would do what they think is its.
    """
    if len(member.to_bytes()) <= codec.MAX_VALUE_BYTES - 1_000:
        return member
    log.warning(
        "more queues are left alone than a worker can say: nothing is done until it is started for some by name"
    )
    return replace(
        member, roles=frozenset(), kinds=frozenset(), report=MemberReport(facts=member.report.facts)
    )


def _remove(tr: Transaction, gone: list[Member]) -> None:
    """Remove the rows of workers that are gone, unless they have beaten meanwhile."""
    stored = [(member, tr.get(keys.worker(member.id))) for member in gone]
    left = [
        member
        for member, row in stored
        if row.value is not None and row.value[:VERSIONSTAMP_BYTES] == member.stamp
    ]
    for member in left:
        tr.clear(keys.worker(member.id))
    if left:
        tr.set_versionstamped_value(keys.WORKERS_CHANGED, INCOMPLETE_VERSIONSTAMP)
