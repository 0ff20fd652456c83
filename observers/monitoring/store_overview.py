"""The overview for operators: backlogs of queues, workers with their rates, and remarks on unusual findings.

No backlog is scanned, see `cq.admin.status`. Figures of workers are those that they write with each beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.admin.queue_status import QueueStatus, current_version, status
from cq.config.queue import MAX_BUCKETS
from cq.observers.monitoring.export_status import ExportStatus, export_status
from cq.observers.outbox.configured import read_problem
from cq.observers.scheduling.members import COMBINE, Member, TaskId, read_members
from cq.plain_text import printable, utc_time
from cq.store.api import Database
from cq.store.transact import transact

_NUMBERS: Final = 5  # figures per queue in a worker's row
_MOST: Final = 1 << 63
_MOST_KINDS: Final = 50
_MOST_ERROR: Final = 1_000
_LATE_SECONDS: Final = 10.0  # a queue whose updates wait longer is late
_OVERDUE_SECONDS: Final = 60.0  # as many seconds after they are due, workers should have deleted keys
_FEW_BUCKETS: Final = 4
_MANY_ROWS: Final = 1_000  # for fewer rows the average size is no basis for advice
_SMALL_ROW: Final = 90  # bytes, key included: one or two updates


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A registered worker.

    Attributes:
        id, host, pid, version: its id, machine and process, and its version of cq.
        roles, queues: its roles, and the queues that it works on (None for all).
        alive: whether it has beaten lately.
        beat_seconds: age of its latest beat, by the store's versions.
        started: its start, by its clock, in seconds since 1970; None if unknown.
        buckets: number of buckets to combine that it owns.
        passes, passes_per_second: since its start, and at present (0 for a dead worker).
        left_alone: queues that it does not combine, because they are paused or it lacks their code.
        stuck: its tasks that hang or fail repeatedly.
        error: the latest error, or empty: exactly as the worker wrote it, up to 1,000 characters.
        error_at: time of this error, by the worker's clock, in seconds since 1970; None if unknown.
        tasks: {kind of task: number of tasks that it owns}.
        updates, updates_per_second: updates that its passes have combined, as passes.
        conflicts, conflicts_per_second: transactions of its passes that conflicted, as passes.
    """

    id: str
    host: str
    pid: int
    version: str
    roles: list[str]
    queues: list[str] | None
    alive: bool
    beat_seconds: float
    started: int | None
    buckets: int
    passes: int
    passes_per_second: float
    left_alone: list[str]
    stuck: list[str]
    error: str
    error_at: int | None = None
    tasks: dict[str, int] = field(default_factory=dict)
    updates: int = 0
    updates_per_second: float = 0.0
    conflicts: int = 0
    conflicts_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of the live workers on a queue.

    Attributes:
        workers: how many workers combine it.
        concurrency: how many passes they can run at once.
        passes, updates, conflicts: since the start of these workers.
        passes_per_second, updates_per_second: at present.
    """

    workers: int = 0
    concurrency: int = 0
    passes: int = 0
    updates: int = 0
    conflicts: int = 0
    passes_per_second: float = 0.0
    updates_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """The rows that the worker of an outbox found when it read the table latest, up to some seconds ago.

    Attributes:
        rows: rows to add to the queue, up to 2,000.
        has_more: whether there were more rows.
        oldest_seconds: the age of the oldest of them, by the clock of the application's database; None: no rows.
    """

    rows: int
    has_more: bool
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The status of queues, exports and workers.

    Attributes:
        queues: in the order of their names, each followed by its levels.
        activity: {name of a queue: work on it}.
        exports: {name of an exported queue, or of an application's export queue: its status}.
        workers: all registered workers, including dead ones whose rows have not been removed yet.
        outboxes: {name of a queue: whether its outbox is stopped, and its latest error}.
        outbox_lags: {name of a queue: the rows of its outbox}, of outboxes that live workers have read.
    """

    queues: list[QueueStatus]
    activity: dict[str, Activity]
    exports: dict[str, ExportStatus]
    workers: list[WorkerStatus]
    outboxes: dict[str, tuple[bool, str]] = field(default_factory=dict)
    outbox_lags: dict[str, OutboxLag] = field(default_factory=dict)


def overview(db: Database, name: str | None = None) -> Overview:
    """Read the overview of one queue with its levels, or of all, and of the workers; raises `QueueNotConfigured`."""
    queues = status(db, name)
    names = [queue.name for queue in queues]
    exports = {each.name: each for each in export_status(db) if name is None or each.name in names}
    members = transact(db, lambda tr: read_members(tr.snapshot))
    outboxes = transact(db, lambda tr: {each: read_problem(tr.snapshot, each) for each in names})
    now = current_version(db)
    alive = [member for member in members if member.is_alive(now)]
    return Overview(
        queues,
        {queue.name: _activity(queue.name, alive) for queue in queues},
        exports,
        sorted((_worker(member, now) for member in members), key=lambda each: (each.host, each.pid, each.id)),
        outboxes,
        {each: lag for each in names if (lag := _outbox_lag(each, alive, has_error=bool(outboxes[each][1])))},
    )


def _worker(member: Member, now: int) -> WorkerStatus:
    facts, alive = member.report.facts, member.is_alive(now)
    totals, queues = _table(facts.get("totals")), _queues(facts).values()
    return WorkerStatus(
        id=member.id.hex(),
        host=member.host,
        pid=member.pid,
        version=str(facts.get("version", "")),
        roles=sorted(member.roles),
        queues=None if member.queues is None else sorted(member.queues),
        alive=alive,
        beat_seconds=member.age(now),
        started=int(_number(facts.get("started"))) or None,
        buckets=int(_number(facts.get("buckets"))),
        passes=int(_number(totals.get("passes"))),
        passes_per_second=round(sum(numbers[3] for numbers in queues), 2) if alive else 0.0,
        left_alone=sorted(member.report.lacking),
        stuck=sorted(member.report.stuck),
        error=str(facts.get("error", ""))[:_MOST_ERROR],
        error_at=int(_number(facts.get("error_at"))) or None,
        tasks=_tasks(facts.get("tasks")),
        updates=int(_number(totals.get("updates"))),
        updates_per_second=round(sum(numbers[4] for numbers in queues), 2) if alive else 0.0,
        conflicts=int(_number(totals.get("conflicts"))),
        conflicts_per_second=float(_number(facts.get("conflicts_per_second"))) if alive else 0.0,
    )


def _activity(name: str, alive: Sequence[Member]) -> Activity:
    numbers = [found for member in alive if (found := _queues(member.report.facts).get(name))]
    passes, updates, conflicts, passes_rate, updates_rate = (
        [sum(column) for column in zip(*numbers, strict=True)] if numbers else [0] * 5
    )
    at_work = [member for member in alive if member.does(TaskId(COMBINE, name, 0))]
    return Activity(
        workers=len(at_work),
        concurrency=sum(int(_number(member.report.facts.get("concurrency"))) or 1 for member in at_work),
        passes=passes,
        updates=updates,
        conflicts=conflicts,
        passes_per_second=round(passes_rate, 2),
        updates_per_second=round(updates_rate, 2),
    )


def _outbox_lag(name: str, alive: Sequence[Member], *, has_error: bool) -> OutboxLag | None:
    """The backlog in the latest row of the live workers that has one; None if it is unknown."""
    for member in sorted(alive, key=lambda member: member.stamp, reverse=True):
        match _table(member.report.facts.get("backlogs")).get(name):
            case [int(rows), bool(has_more), float() | None as oldest_at] if rows or not has_error:
                # An outbox that fails and had no rows before may have some now.
                age = None if oldest_at is None else max(0.0, round(runtime.time() - _number(oldest_at), 3))
                return OutboxLag(int(_number(rows)), has_more, age)
    return None


def _queues(facts: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """{queue: the numbers of `WorkerStatistics`}."""
    found = _table(facts.get("queues"))
    return {
        name: list(map(_number, numbers))
        for name, numbers in found.items()
        if isinstance(numbers, list) and len(numbers) == _NUMBERS
    }


def _tasks(found: object) -> dict[str, int]:
    """{kind: number} of the owned tasks; a version of cq that does not know a kind shows it, too."""
    numbers = list(_table(found).items())[:_MOST_KINDS]
    return {printable(str(kind)): int(_number(number)) for kind, number in numbers}


def _table(found: object) -> Mapping[Any, Any]:
    return found if isinstance(found, Mapping) else {}


def _number(found: object) -> float:
    """The number itself; 0 for any other object, and for numbers that workers do not write."""
    return found if isinstance(found, int | float) and 0 <= found < _MOST else 0


class Finding(StrEnum):
    """The kinds of remarks."""

    NO_WORKER = "no worker is alive"
    NOT_COMBINED = "no worker combines a queue"
    CODE_MISSING = "the live workers lack the code of a queue"
    UNREADABLE = "stored data cannot be read"
    PAUSED = "a queue is paused"
    FULL = "a queue exceeds its limits"
    PROGRESS = "workers change a queue, and will finish"
    REFUSED = "a window has refused updates"
    LATE = "updates wait for long"
    BUCKETS = "another number of buckets suits a queue better"
    EXPORT = "an export fails"
    OUTBOX = "an outbox fails"
    DEAD_WORKER = "a worker is dead"
    LEFT_ALONE = "a worker leaves queues alone"
    WORKER = "a worker reports a problem"


class Remark(NamedTuple):
    """A remark for an operator: its kind, the queue or worker (empty: the whole store), and the text about it."""

    finding: Finding
    name: str
    text: str

    def __str__(self) -> str:
        """The whole line."""
        match self.finding:
            case Finding.NO_WORKER:
                return self.text
            case Finding.EXPORT | Finding.OUTBOX:
                return f"the {self.finding.name.lower()} of queue {self.name!r} {self.text}"
            case Finding.DEAD_WORKER | Finding.LEFT_ALONE | Finding.WORKER:
                return f"worker {self.name} {self.text}"
            case _:
                return f"queue {self.name!r}: {self.text}"


def remarks(seen: Overview) -> list[str]:
    """Remarks for an operator on an overview, one line each."""
    return list(map(str, find_remarks(seen)))


def find_remarks(seen: Overview) -> list[Remark]:
    """As `remarks`, each with its kind and its subject."""
    is_any_alive = any(worker.alive for worker in seen.workers)
    found = [] if is_any_alive else [Remark(Finding.NO_WORKER, "", "no worker is alive")]
    by_queue: dict[str, list[tuple[Finding, str]]] = {}
    for queue in seen.queues:
        activity = seen.activity[queue.name]
        said = by_queue[queue.name] = []
        if is_any_alive and not (queue.paused or queue.problem or activity.workers):
            said.append(_not_combined(queue, seen.workers))
        said += [*_of_queue(queue), *_about_buckets(queue, activity.concurrency)]
        if activity.workers and not queue.paused:  # else all buckets wait, so an old one is not unusual
            for bucket, age in queue.outstanding.items():
                text = f"bucket {bucket} has waited for {age:,.1f} s, far longer than others"
                said.append((Finding.LATE, text))
        # A pause of a queue, for instance, is one remark: it is also true of the levels.
        of_source = by_queue.get(queue.level_of or "", [])
        found += [
            Remark(finding, queue.name, text) for finding, text in said if (finding, text) not in of_source
        ]
    for name, export in seen.exports.items():
        if export.error:
            found.append(Remark(Finding.EXPORT, name, f"is {export.state}: {export.error}"))
    for name, (stopped, error) in seen.outboxes.items():
        if error:
            found.append(Remark(Finding.OUTBOX, name, f"is {'stopped' if stopped else 'failing'}: {error}"))
    for worker in seen.workers:
        found += [Remark(finding, worker.id, text) for finding, text in _of_worker(worker)]
    return found


def _not_combined(queue: QueueStatus, workers: Sequence[WorkerStatus]) -> tuple[Finding, str]:
    is_lacking = any(queue.name in worker.left_alone for worker in workers if worker.alive)
    finding = Finding.CODE_MISSING if is_lacking else Finding.NOT_COMBINED
    why = "lack its code" if is_lacking else "are for other queues, or have other roles"
    return finding, f"no worker combines it: the live workers {why}"


def _of_queue(queue: QueueStatus) -> list[tuple[Finding, str]]:
    found = []
    if queue.problem:
        found.append((Finding.UNREADABLE, f"cannot be read: {queue.problem}"))
    if queue.paused:
        end = "`cq resume`" if queue.paused_until is None else utc_time(queue.paused_until)
        found.append((Finding.PAUSED, f"paused until {end}: {queue.reason}"))
    if queue.full:
        found.append((Finding.FULL, f"full: {queue.full}"))
    if queue.former_buckets is not None:
        found.append((Finding.PROGRESS, f"its {queue.former_buckets:,} former buckets are being drained"))
    for observer, complete in queue.backfilling.items():
        text = f"backfill of {observer}: buckets {complete:,} of {queue.settings['buckets']:,}"
        found.append((Finding.PROGRESS, text))
    window = queue.window
    if window is not None and (window.late or window.future):
        text = f"its window has refused {window.late:,} updates as too late, {window.future:,} as too early"
        found.append((Finding.REFUSED, text))
    if window is not None and window.overdue_seconds > _LATE_SECONDS:
        text = f"updates due to expire from its window have waited for {window.overdue_seconds:,.1f} s"
        found.append((Finding.LATE, text))
    if queue.expiry is not None and queue.expiry.overdue_seconds > _OVERDUE_SECONDS:
        found.append(
            (Finding.LATE, f"keys due to expire have waited for {queue.expiry.overdue_seconds:,.1f} s")
        )
    return found


def _about_buckets(queue: QueueStatus, concurrency: int) -> list[tuple[Finding, str]]:
    """Advice on the number of buckets, as far as it follows from the backlog."""
    if queue.problem or queue.former_buckets is not None or queue.paused:
        return []
    buckets: int = queue.settings["buckets"]
    late = queue.oldest_seconds is not None and queue.oldest_seconds > _LATE_SECONDS
    if late and queue.waiting_buckets == buckets and concurrency > buckets:
        wanted = min(MAX_BUCKETS, 1 << (concurrency - 1).bit_length())
        advice = f"`cq rebucket {queue.name} --buckets {wanted}`"
        text = f"buckets that wait: all {buckets:,}, and workers could run {concurrency:,} passes at once: {advice}"
        return [(Finding.BUCKETS, text)]
    if buckets > _FEW_BUCKETS and queue.rows >= _MANY_ROWS and queue.bytes < _SMALL_ROW * queue.rows:
        size, wanted = queue.bytes // queue.rows, max(_FEW_BUCKETS, buckets // 4)
        advice = f"`cq rebucket {queue.name} --buckets {wanted}`"
        text = f"rows are of {size:,} bytes only, so adds would cost less with fewer buckets: {advice}"
        return [(Finding.BUCKETS, text)]
    return []


def _of_worker(worker: WorkerStatus) -> list[tuple[Finding, str]]:
    if not worker.alive:
        return [(Finding.DEAD_WORKER, f"is dead: its latest beat is {worker.beat_seconds:,.1f} s old")]
    found = []
    if worker.left_alone:
        found.append((Finding.LEFT_ALONE, f"leaves alone: {', '.join(worker.left_alone)}"))
    if worker.stuck:
        found.append((Finding.WORKER, f"is stuck in: {', '.join(worker.stuck)}"))
    if worker.error:
        found.append((Finding.WORKER, f"had the latest error: {worker.error}"))
    return found
