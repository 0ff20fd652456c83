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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq import codec, keys, machine
from cq.errors import CorruptData
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, version_of
from cq.observers.telemetry import emit
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead, seconds_since
from cq.store.transact import transact, transact_versioned

ROLES: Final = ("combine", "export", "publish", "deliver")
"""What workers do: passes over buckets, exports, publishing clouds, and what feeds need."""
MEASURE: Final = "measure"
"""What workers with metrics do besides: measuring what waits, also in queues that nobody can work on."""
LIMIT: Final = "limit"
"""What workers that combine do besides: comparing what waits with its limits, also in queues left alone."""
EXPORTER: Final = "exporter"
"""What workers that export do with the exporters of their application."""
BEAT_SECONDS: Final = 4.0
"""How often a worker beats that has nothing to do: three requests to the store."""
ALIVE_BEATS: Final = 4
"""A worker whose last beat is older, by the store's versions, counts as dead to those who look once."""
_BUSY: Final = 4  # times as often while it has something to do, and is missed so much sooner
_FIRST_BEATS: Final = 10  # that come as soon: those who have just begun die more often than others
_GONE_BEATS: Final = 3
_OLD_BEATS: Final = 8  # that a row is so old says that its worker is gone, also at first sight
_LATE_BEATS: Final = 2  # who has not beaten for so long before its row went has not left in good order
log = logging.getLogger("cq.worker")

_LONGEST_BEAT: Final = 24 * 3600.0

_OFFSET: Final = INCOMPLETE_VERSIONSTAMP[VERSIONSTAMP_BYTES:]


class Share(NamedTuple):
    """One task, as it is shared out: its role, the queue, and which of the tasks that are so."""

    role: str
    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}/{self.queue}/{self.number}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself with each beat.

    Attributes:
        lacking: queues that it leaves alone, as they are paused or it has not their code; and as ROLE/QUEUE those of
            which it leaves that role alone.
        exporters: export queues that its application exports.
        stuck: tasks of its own that have come to no end for long; others may take them over.
        facts: for operators, in CBOR: what it has done, how fast, its latest error.
    """

    lacking: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()
    exporters: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[frozenset[str], ...]:
        """All that decides which tasks are the worker's."""
        return self.lacking, self.stuck, self.exporters


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as its row says.

    Attributes:
        id: the worker's own, of 8 bytes.
        stamp: the versionstamp of its latest beat.
        every: seconds until its next beat.
        roles, queues: what it does, and for which queues (None for all).
        host, pid: where it runs.
        report: what it says of itself.
    """

    id: bytes
    stamp: bytes
    every: float
    roles: frozenset[str]
    queues: frozenset[str] | None
    host: str
    pid: int
    report: Report

    def to_bytes(self) -> bytes:
        """What is stored behind the versionstamp."""
        report = self.report
        return codec.encode(
            {
                "every": self.every,
                "roles": sorted(self.roles),
                "queues": None if self.queues is None else sorted(self.queues),
                "host": self.host,
                "pid": self.pid,
                "lacking": sorted(report.lacking),
                "stuck": sorted(report.stuck),
                "exporters": sorted(report.exporters),
                "facts": dict(report.facts),
            }
        )

    @classmethod
    def of_row(cls, key: bytes, value: bytes) -> Member:
        """The inverse; raises `CorruptData`."""
        row: Any = codec.decode(value[VERSIONSTAMP_BYTES:])
        worker = keys.worker_of(key)
        if (
            len(worker) != keys.WORKER_ID_BYTES
            or not isinstance(row, dict)
            or not all(what in row and _is_of(row[what], kinds) for what, kinds in _ROW.items())
            or not 0 < row["every"] <= _LONGEST_BEAT
        ):
            raise CorruptData(f"the row of a worker is not one that cq wrote: {value[:40]!r}")
        queues = row["queues"]
        return cls(
            worker,
            value[:VERSIONSTAMP_BYTES],
            float(row["every"]),
            frozenset(row["roles"]),
            None if queues is None else frozenset(queues),
            row["host"],
            row["pid"],
            Report(
                frozenset(row["lacking"]), frozenset(row["stuck"]), frozenset(row["exporters"]), row["facts"]
            ),
        )

    def age(self, version: int) -> float:
        """How old its latest beat is in seconds, given a version of now."""
        return seconds_since(version_of(self.stamp), version)

    def is_alive(self, version: int) -> bool:
        """Whether it has beaten lately, given a version of now: for those who look once, and so have patience."""
        return self.age(version) <= ALIVE_BEATS * max(BEAT_SECONDS, self.every)

    def does(self, share: Share) -> bool:
        """Whether a task is one that it would do."""
        if self.queues is not None and share.queue not in self.queues:
            return False
        lacking = self.report.lacking
        match share.role:
            case "measure":
                return share.role in self.roles
            case "deliver":  # a feed has nothing to do with a queue of its name
                return share.role in self.roles
            case "limit":
                return "combine" in self.roles
            case "exporter":
                return "export" in self.roles and share.queue in self.report.exporters
            case role:
                is_left = share.queue in lacking or f"{role}/{share.queue}" in lacking
                return role in self.roles and not is_left


_ROW: Final[Mapping[str, tuple[type, ...]]] = {
    "every": (float, int),
    "roles": (list,),
    "queues": (list, type(None)),
    "host": (str,),
    "pid": (int,),
    "lacking": (list,),
    "stuck": (list,),
    "exporters": (list,),
    "facts": (dict,),
}
"""What a worker's row has; lists are of str."""


def _is_of(part: Any, kinds: tuple[type, ...]) -> bool:
    if type(part) is int and not 0 <= part < 1 << 63:
        return False
    return type(part) in kinds and (type(part) is not list or all(type(each) is str for each in part))


def order(share: Share, members: Iterable[Member]) -> list[bytes]:
    """The ids of the workers that do such tasks, in rendezvous order; those that are stuck in this one come last.

    The task belongs to the first.
    """
    name = str(share)
    data = name.encode()
    places = [
        (
            name not in member.report.stuck,
            blake2b(data, key=member.id, digest_size=keys.WORKER_ID_BYTES).digest(),
            member.id,
        )
        for member in members
        if member.does(share)
    ]
    return [place[-1] for place in sorted(places, reverse=True)]


def read_members(tr: TransactionRead) -> list[Member]:
    """All workers that have registered, also those that are gone but whose rows nobody has removed yet.

    A row that cannot be read, of a later version of cq say, stands for nobody: its tasks are done twice at worst.
    """
    found = []
    for row in tr.get_range(*keys.workers(), streaming_mode=WANT_ALL):
        with suppress(CorruptData):
            found.append(Member.of_row(row.key, row.value))
    return found


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
        clock: Callable[[], float] = machine.monotonic,
    ) -> None:
        self.id = blake2b(
            (identity or machine.token_bytes(16).hex()).encode(), digest_size=keys.WORKER_ID_BYTES
        ).digest()
        self.every = every
        self._db, self._clock = db, clock
        self._key = keys.worker(self.id)
        self._roles, self._beats = frozenset(roles), 0
        named = frozenset(queues) or None
        self.me = Member(self.id, b"", every, self._roles, named, socket.gethostname(), os.getpid(), Report())
        self._seen: dict[bytes, _Seen] = {}
        self.others: list[Member] = []
        self._shape: object = None
        self.next_beat = clock()
        self.version = 0

    def beat(self, report: Report, *, is_busy: bool = False) -> bool:
        """Write the own row and look at the others; whether tasks may belong to others than before.

        A worker that is busy says that it will beat again soon. Rows of workers that are gone are removed. Raises the
        store's `FDBError`.
        """
        self._beats += 1
        every = self.every / _BUSY if is_busy or self._beats <= _FIRST_BEATS else self.every
        self.me = _that_fits(replace(self.me, roles=self._roles, report=report, every=every))
        members, self.version = transact_versioned(self._db, self._beat)
        self.next_beat = self._clock() + every
        others = [member for member in members if member.id != self.id]
        gone = [member for member in others if self._is_gone(member)]
        self._tell(others, gone)
        self._seen = {member.id: self._seen[member.id] for member in others}
        self.others = [member for member in others if member not in gone]
        if gone:
            transact(self._db, partial(_remove, gone=gone))
        shape = {(each.id, each.roles, each.queues, each.report.names) for each in [self.me, *self.others]}
        changed, self._shape = shape != self._shape, shape
        return changed

    def is_mine(self, share: Share) -> bool:
        """Whether a task belongs to this worker, as of the latest beat."""
        return order(share, [self.me, *self.others])[:1] == [self.id]

    def is_among(self, share: Share, number: int) -> bool:
        """Whether this worker is one of the first so many that a task could belong to."""
        return self.id in order(share, [self.me, *self.others])[:number]

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
        """Whether a worker has not beaten for long; a row of long ago, by the store's versions, at first sight."""
        now = self._clock()
        seen = self._seen.get(member.id)
        if seen is None or seen.stamp != member.stamp:
            seen = self._seen[member.id] = _Seen(member.stamp, now)
        else:
            seen.reads += 1
        if not seen.reads:
            return member.age(self.version) > _OLD_BEATS * member.every
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
    return replace(member, roles=frozenset(), report=Report(facts=member.report.facts))


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
