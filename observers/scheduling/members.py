"""The workers of a store as their rows say: what each does, and to which of them a task belongs.

A worker announces the kinds of tasks that it can do. A worker of another version may not know a kind that this one
knows, and must not be counted on for it: the task would not be done. A row that says nothing of kinds is of a build
before 0.1.0: such a worker is counted on for the oldest kinds only (`_OLDEST`). It may do tasks of other kinds all the
same; then they are done twice, which does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from cq import keys
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import VERSIONSTAMP_BYTES, version_of
from cq.store.api import WANT_ALL, TransactionRead, seconds_since

ROLES: Final = ("combine", "export", "publish", "deliver")
"""What an operator can have workers do: passes over buckets, exports, publishing clouds, and what feeds need."""
MEASURE: Final = "measure"
"""The role, and the kind, of workers with metrics: measuring queues, also those that nobody can work on."""
LIMIT: Final = "limit"
"""The kind of tasks that compare a queue with its limits, also one that is left alone."""
TRIM: Final = "trim"
"""The kind of tasks that forget operation ids and emitters."""
WINDOW: Final = "window"
"""The kind of tasks that take out of a window."""
SETTLE: Final = "settle"
"""The kind of tasks that finish a change of shape and switch observers."""
EXPORTER: Final = "exporter"
"""The kind of tasks that export with the exporters of the application."""
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "combine": ("combine", LIMIT, TRIM, WINDOW, SETTLE),
    "export": ("export", EXPORTER),
    "publish": ("publish",),
    "deliver": ("deliver",),
    MEASURE: (MEASURE,),
}
"""{role: the kinds of its tasks}. A new kind of task needs a name of its own here."""
_OLDEST: Final = frozenset({"combine", LIMIT, "export", EXPORTER, "publish", "deliver", MEASURE})
ALIVE_BEATS: Final = 4
"""A worker whose last beat is older, by the store's versions, counts as dead to those who look once."""
BEAT_SECONDS: Final = 4.0
"""How often a worker beats that has nothing to do: three requests to the store."""
_LONGEST_BEAT: Final = 24 * 3600.0


def kinds_of(roles: Iterable[str]) -> frozenset[str]:
    """The kinds of tasks that a worker of this version does in these roles."""
    return frozenset(kind for role in roles for kind in _KINDS.get(role, ()))


class TaskId(NamedTuple):
    """One task, as it is shared out: its kind, the queue, and its number among the queue's tasks of the kind."""

    kind: str
    queue: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.queue}/{self.number}"


@dataclass(frozen=True, slots=True)
class MemberReport:
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
        kinds: the kinds of tasks that it can do in these roles.
        host, pid: where it runs.
        report: what it says of itself.
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
        """What is stored behind the versionstamp."""
        report = self.report
        return codec.encode(
            {
                "every": self.every,
                "roles": sorted(self.roles),
                "kinds": sorted(self.kinds),
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
        if isinstance(row, dict):
            row = {"kinds": None, **row}
        if (
            len(worker) != keys.WORKER_ID_BYTES
            or not isinstance(row, dict)
            or not all(what in row and _is_of(row[what], kinds) for what, kinds in _ROW.items())
            or not 0 < row["every"] <= _LONGEST_BEAT
        ):
            raise CorruptData(f"the row of a worker is not one that cq wrote: {value[:40]!r}")
        queues, roles = row["queues"], frozenset(row["roles"])
        kinds = kinds_of(roles) & _OLDEST if row["kinds"] is None else frozenset(row["kinds"])
        return cls(
            worker,
            value[:VERSIONSTAMP_BYTES],
            float(row["every"]),
            roles,
            kinds,
            None if queues is None else frozenset(queues),
            row["host"],
            row["pid"],
            MemberReport(
                frozenset(row["lacking"]), frozenset(row["stuck"]), frozenset(row["exporters"]), row["facts"]
            ),
        )

    def age(self, version: int) -> float:
        """How old its latest beat is in seconds, given a version of now."""
        return seconds_since(version_of(self.stamp), version)

    def is_alive(self, version: int) -> bool:
        """Whether it has beaten lately, given a version of now: for those who look once, and so have patience."""
        return self.age(version) <= ALIVE_BEATS * max(BEAT_SECONDS, self.every)

    def does(self, task: TaskId) -> bool:
        """Whether a task is one that it would do."""
        if task.kind not in self.kinds or (self.queues is not None and task.queue not in self.queues):
            return False
        lacking = self.report.lacking
        match task.kind:
            case "measure" | "limit":  # also of a queue that it leaves alone
                return True
            case "deliver":  # a feed has nothing to do with a queue of its name
                return True
            case "exporter":
                return task.queue in self.report.exporters
            case kind:
                return task.queue not in lacking and f"{kind}/{task.queue}" not in lacking


_ROW: Final[Mapping[str, tuple[type, ...]]] = {
    "every": (float, int),
    "roles": (list,),
    "kinds": (list, type(None)),
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


def order(task: TaskId, members: Iterable[Member]) -> list[bytes]:
    """The ids of the workers that do such tasks, in rendezvous order; those that are stuck in this one come last.

    The task belongs to the first.
    """
    name = str(task)
    data = name.encode()
    places = [
        (
            name not in member.report.stuck,
            blake2b(data, key=member.id, digest_size=keys.WORKER_ID_BYTES).digest(),
            member.id,
        )
        for member in members
        if member.does(task)
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
