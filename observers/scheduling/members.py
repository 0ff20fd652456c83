"""The rows of a store's workers: the tasks that each can do, and the order in which workers own a task.

A worker announces the kinds of tasks that it can do. A worker of another version may not know every kind of this
version; such a task must not be assigned to it, as no worker would run it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq.config.parts import MAX_BUCKETS
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import VERSIONSTAMP_BYTES, version_of
from cq.keys.membership import WORKER_ID_BYTES, alive_seconds, workers
from cq.store.api import WANT_ALL, TransactionRead, seconds_since

COMBINE: Final = "combine"
"""The role, and the kind, of the tasks that combine the updates of a bucket."""
LINK: Final = "link"
"""The role, and the kind, of the tasks that send entries of links."""
PUBLISH: Final = "publish"
"""The role, and the kind, of the tasks that publish clouds."""
DELIVER: Final = "deliver"
"""The role, and the kind, of the tasks of feeds."""
OUTBOX: Final = "outbox"
"""The role, and the kind, of the tasks that move rows of outboxes into queues."""
ROLES: Final = (COMBINE, LINK, PUBLISH, DELIVER, OUTBOX)
"""Roles that an operator can give to workers: passes over buckets, links, clouds, tasks of feeds, and outboxes."""
MEASURE: Final = "measure"
"""The role, and the kind, of workers with metrics: one of them measures the store, whatever it works on."""
LIMIT: Final = "limit"
"""The kind of tasks that compare a queue with its limits, also a queue that the worker leaves alone."""
TRIM: Final = "trim"
"""The kind of tasks that remove old operation ids and emitters."""
EXPIRY: Final = "expiry"
"""The kind of tasks that notify the buckets with due keys of a queue with an expiry."""
SETTLE: Final = "settle"
"""The kind of tasks that finish a rebucket and switch to backfilled observers."""


class TaskKind(NamedTuple):
    """A kind of tasks.

    Attributes:
        role: the role of the workers that do them.
        noun: the words before the names of their queues in the description of a worker's work; empty: not in it.
        is_always: whether a worker also does them for a queue that it leaves alone: a feed is independent of it.
    """

    role: str
    noun: str = ""
    is_always: bool = False


KINDS: Final[Mapping[str, TaskKind]] = {
    COMBINE: TaskKind(COMBINE),
    LIMIT: TaskKind(COMBINE, is_always=True),
    TRIM: TaskKind(COMBINE),
    EXPIRY: TaskKind(COMBINE),
    SETTLE: TaskKind(COMBINE),
    LINK: TaskKind(LINK, "links of"),
    PUBLISH: TaskKind(PUBLISH, "clouds of"),
    DELIVER: TaskKind(DELIVER, "feeds", is_always=True),
    OUTBOX: TaskKind(OUTBOX, "outboxes of"),
    MEASURE: TaskKind(MEASURE, is_always=True),
}
"""{kind: what workers know about its tasks}. Add each new kind of task here under a new name."""
_LINK_TASKS: Final = 16
"""More than a link has tasks: a keeper, and one for each bucket."""
_LONGEST_BEAT: Final = 24 * 3600.0


def kinds_of(roles: Collection[str]) -> frozenset[str]:
    """The kinds of tasks that a worker of this version does in these roles."""
    return frozenset(name for name, kind in KINDS.items() if kind.role in roles)


class TaskId(NamedTuple):
    """Identifies a task among all workers: its kind, the queue, and its number among the queue's tasks of the kind."""

    kind: str
    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.queue}/{self.number}"

    @classmethod
    def of_bucket(cls, queue: str, generation: int, number: int = 0) -> TaskId:
        """The id of the task that combines a bucket."""
        return cls(COMBINE, queue, generation * MAX_BUCKETS + number)

    @classmethod
    def of_link(cls, queue: str, generation: int, number: int = 0) -> TaskId:
        """The id of a task of the link with this generation, which no other link of the queue has."""
        return cls(LINK, queue, generation * _LINK_TASKS + number)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts of a queue's work that the task belongs to: a worker may lack something for one."""
        role = f"{self.kind}/{self.queue}"
        return (role, f"{role}/{self.number // _LINK_TASKS}") if self.kind == LINK else (role,)


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The part of a worker's row that changes with its work.

    Attributes:
        lacking: queues that it leaves alone, as they are paused or it lacks their code; as ROLE/QUEUE if it leaves
            alone only that role of the queue, or as link/QUEUE/GENERATION for a link of this generation.
        levels: levels of the queues that it was started for: it works on them, too.
        stuck: its tasks that hang or fail repeatedly; other workers may take them over.
        facts: for operators, in CBOR: counts, rates and the latest error (`WorkerReports.facts`).
    """

    lacking: frozenset[str] = frozenset()
    stuck: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    levels: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[frozenset[str], ...]:
        """The fields that decide which tasks the worker owns."""
        return self.lacking, self.stuck, self.levels


@dataclass(frozen=True, slots=True)
class Member:
    """A worker, as read from its row.

    Attributes:
        id: the worker's id, of 8 bytes.
        stamp: the versionstamp of its latest beat.
        every: seconds until its next beat.
        roles, queues: its roles, and the queues that it was started for (None for all).
        kinds: the kinds of tasks that it can do in these roles.
        host, pid: its machine and process.
        report: the part of the row that changes with its work.
    """

    id: bytes
    stamp: bytes
    every: float
    roles: frozenset[str]
    kinds: frozenset[str]
    queues: frozenset[str] | None
    host: str
    pid: int
    report: MemberReport

    def to_bytes(self) -> bytes:
        """The row's value after the versionstamp."""
        row = {name: getattr(self.report if name in _REPORTED else self, name) for name in _ROW}
        return codec.encode(
            {name: sorted(part) if isinstance(part, frozenset) else part for name, part in row.items()}
        )

    @classmethod
    def of_row(cls, key: bytes, value: bytes) -> Member:
        """The member of a stored row; raises `CorruptData`."""
        row: Any = codec.decode(value[VERSIONSTAMP_BYTES:])
        worker = workers.rest(key)
        if (
            len(worker) != WORKER_ID_BYTES
            or not isinstance(row, dict)
            or not all(name in row and _is_of(row[name], types) for name, types in _ROW.items())
            or not 0 < row["every"] <= _LONGEST_BEAT
        ):
            raise CorruptData(f"the row of a worker is not one that cq wrote: {value[:40]!r}")
        parts: dict[str, Any] = {
            name: frozenset(row[name]) if type(row[name]) is list else row[name] for name in _ROW
        }
        report = MemberReport(**{name: parts.pop(name) for name in _REPORTED})
        return cls(worker, value[:VERSIONSTAMP_BYTES], report=report, **parts)

    def age(self, version: int) -> float:
        """Age of its latest beat in seconds, given the current version."""
        return seconds_since(version_of(self.stamp), version)

    def is_alive(self, version: int) -> bool:
        """Whether it has beaten lately, given the current version: lenient, for callers that read the row only once."""
        return self.age(version) <= alive_seconds(self.every)

    def does(self, task: TaskId) -> bool:
        """Whether it would run this task."""
        named = self.queues
        # The task of measuring is of no queue.
        is_named = named is None or not task.queue or task.queue in named or task.queue in self.report.levels
        if task.kind not in self.kinds or not is_named:
            return False
        if KINDS[task.kind].is_always:
            return True
        return not self.report.lacking & {task.queue, *task.parts}


_REPORTED: Final = tuple(each.name for each in fields(MemberReport))
_ROW: Final[Mapping[str, tuple[type, ...]]] = {
    "every": (float, int),
    "queues": (list, type(None)),
    "host": (str,),
    "pid": (int,),
    "facts": (dict,),
    **dict.fromkeys(("roles", "kinds", "lacking", "stuck", "levels"), (list,)),
}
"""{field of a worker's row: its types}; lists contain str. The fields are those of `Member` and `MemberReport`."""


def _is_of(part: Any, kinds: tuple[type, ...]) -> bool:
    if type(part) is int and not 0 <= part < 1 << 63:
        return False
    return type(part) in kinds and (type(part) is not list or all(type(each) is str for each in part))


def order(task: TaskId, members: Iterable[Member]) -> list[bytes]:
    """The ids of the workers that do such tasks, in rendezvous order; the first owns the task.

    Workers that report this task as stuck come last.
    """
    name = str(task)
    data = name.encode()
    places = [
        (
            name not in member.report.stuck,
            blake2b(data, key=member.id, digest_size=WORKER_ID_BYTES).digest(),
            member.id,
        )
        for member in members
        if member.does(task)
    ]
    return [place[-1] for place in sorted(places, reverse=True)]


def read_members(tr: TransactionRead) -> list[Member]:
    """All registered workers, including dead ones whose rows have not been removed yet.

    An unreadable row, for example of a later version of cq, is skipped: at worst two workers run the same task.
    """
    found = []
    for row in tr.get_range(*workers(), streaming_mode=WANT_ALL):
        with suppress(CorruptData):
            found.append(Member.of_row(row.key, row.value))
    return found
