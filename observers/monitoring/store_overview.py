"""The overview for operators: backlogs of queues, and workers with their rates.

No backlog is scanned, see `cq.admin.status`. Figures of workers are those that they write with each beat.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any, Final

from cq import runtime
from cq.admin.queue_status import QueueStatus, current_version, status
from cq.config.queue import queue_names, read_config
from cq.errors import CorruptData, CqError
from cq.keys.link import OUTBOX, OutboxKeys
from cq.observers.feeds.tasks import feeds_with_work
from cq.observers.links.outbox.state import read_problem, read_settings
from cq.observers.links.spec import links_in
from cq.observers.links.state import read_control
from cq.observers.monitoring.link_status import LinkStatus, link_status
from cq.observers.scheduling.members import COMBINE, DELIVER, ROLES, Member, TaskId, read_members
from cq.observers.scheduling.members import OUTBOX as OUTBOX_ROLE
from cq.plain_text import printable
from cq.store.api import Database, Transaction
from cq.store.bounded_reads import read_each
from cq.store.transact import transact

_NUMBERS: Final = 5  # figures per queue in a worker's row
_MOST: Final = 1 << 63
_MAX_KINDS: Final = 50
_MAX_ERROR: Final = 1_000
_MAX_APP: Final = 200
_APP: Final = re.compile(r"[\w.]+:[\w.]+", re.ASCII)


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
        left_alone: queues that it does not combine, because they are paused or it lacks their code, and parts of the
            work that it lacks something for, such as `link/QUEUE/LINK`.
        stuck: its tasks that hang or fail repeatedly.
        error: the latest error, or empty: exactly as the worker wrote it, up to 1,000 characters.
        error_at: time of this error, by the worker's clock, in seconds since 1970; None if unknown.
        tasks: {kind of task: number of tasks that it owns}.
        updates, updates_per_second: updates that its passes have combined, as passes.
        conflicts, conflicts_per_second: transactions of its passes that conflicted, as passes.
        app: MODULE:APP of its option `--app`; empty without one.
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
    app: str = ""

    @property
    def stuck_queues(self) -> set[str]:
        """The queues whose passes hang or fail repeatedly."""
        tasks = [task.partition("/") for task in self.stuck]
        return {rest.rpartition("/")[0] for kind, _, rest in tasks if kind == COMBINE}

    @property
    def command(self) -> str:
        """The command that starts a worker like this one; with its app only if this is MODULE:APP."""
        words = ["cq worker", *map(quote, self.queues or ())]
        if not set(ROLES) <= set(self.roles):
            words += [f"--only {role}" for role in ROLES if role in self.roles]
        if _APP.fullmatch(self.app):
            words.append(f"--app {self.app}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of the live workers on a queue.

    Attributes:
        workers: how many workers combine it.
        concurrency: how many passes they can run at once.
        passes, updates, conflicts: since the start of these workers.
        passes_per_second, updates_per_second: at present.
        decisions_per_second: of a queue with a decider, at present.
        refused_share: the share of these that are refused, 0 to 1; None without decisions.
        answer_seconds: how long the first request of a pass waits for its answer at present, on average; None without
            decisions.
    """

    workers: int = 0
    concurrency: int = 0
    passes: int = 0
    updates: int = 0
    conflicts: int = 0
    passes_per_second: float = 0.0
    updates_per_second: float = 0.0
    decisions_per_second: float = 0.0
    refused_share: float | None = None
    answer_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The status of queues, links and workers.

    Attributes:
        queues: in the order of their names, each followed by its levels.
        activity: {name of a queue: work on it}.
        links: the links of these queues.
        workers: all registered workers, including dead ones whose rows have not been removed yet.
        outboxes: {name of a queue: its outbox}.
        feeds: {name of a feed with messages that workers must deliver or number: how many workers are for it}; empty
            in the overview of one queue.
        outbox_workers: {name of a queue with an outbox: how many workers are for the outbox}.
    """

    queues: list[QueueStatus]
    activity: dict[str, Activity]
    links: list[LinkStatus]
    workers: list[WorkerStatus]
    outboxes: dict[str, LinkStatus] = field(default_factory=dict)
    feeds: dict[str, int] = field(default_factory=dict)
    outbox_workers: dict[str, int] = field(default_factory=dict)

    def links_of(self, queue: str) -> list[LinkStatus]:
        """The links of a queue."""
        return [each for each in self.links if each.queue == queue]


def overview(db: Database, name: str | None = None) -> Overview:
    """Read the overview of one queue with its levels, or of all, and of the workers; raises `QueueNotConfigured`."""
    queues = status(db, name)
    names = [queue.name for queue in queues]
    members = transact(db, lambda tr: read_members(tr.snapshot))
    now = current_version(db)
    alive = [member for member in members if member.is_alive(now)]
    outboxes = _outboxes(db, names, alive)
    all_names = names if name is None else transact(db, lambda tr: queue_names(tr.snapshot))
    shown = dict(part for parts in read_each(db, all_names, _link_parts) for part in parts)
    feeds = transact(db, lambda tr: feeds_with_work(tr.snapshot)) if name is None else []
    return Overview(
        queues,
        {queue.name: _activity(queue.name, alive) for queue in queues},
        [each for each in _with_rates(link_status(db), alive) if name is None or each.queue in names],
        sorted(
            (_worker(member, now, shown) for member in members),
            key=lambda each: (each.host, each.pid, each.id),
        ),
        {each.queue: each for each in outboxes},
        _workers_for(DELIVER, feeds, alive),
        _workers_for(OUTBOX_ROLE, [each.queue for each in outboxes], alive),
    )


def _workers_for(role: str, names: Iterable[str], alive: Sequence[Member]) -> dict[str, int]:
    """{name: how many workers have this role, and are for the queue or feed of this name}."""
    return {name: sum(member.does(TaskId(role, name, 0)) for member in alive) for name in names}


def _link_parts(tr: Transaction, queue: str) -> list[tuple[str, str]]:
    """The part of a worker's work that each link of a queue is, and its text for operators, with the link's name."""
    with suppress(CqError):  # the checks of the queue report it
        return [
            (TaskId.of_link(queue, observer.generation).parts[-1], f"link/{queue}/{link}")
            for link, observer in links_in(read_config(tr.snapshot, queue)).items()
        ]
    return []


def _worker(member: Member, now: int, shown: Mapping[str, str]) -> WorkerStatus:
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
        left_alone=sorted(shown.get(part, part) for part in member.report.lacking),
        stuck=sorted(member.report.stuck),
        error=str(facts.get("error", ""))[:_MAX_ERROR],
        error_at=int(_number(facts.get("error_at"))) or None,
        tasks=_tasks(facts.get("tasks")),
        updates=int(_number(totals.get("updates"))),
        updates_per_second=round(sum(numbers[4] for numbers in queues), 2) if alive else 0.0,
        conflicts=int(_number(totals.get("conflicts"))),
        conflicts_per_second=float(_number(facts.get("conflicts_per_second"))) if alive else 0.0,
        app=str(facts.get("app", ""))[:_MAX_APP],
    )


def _activity(name: str, alive: Sequence[Member]) -> Activity:
    numbers = [found for member in alive if (found := _queues(member.report.facts).get(name))]
    sums: list[Any] = [round(sum(column), 2) for column in zip(*numbers, strict=True)]
    at_work = [member for member in alive if member.does(TaskId(COMBINE, name, 0))]
    concurrency = sum(int(_number(member.report.facts.get("concurrency"))) or 1 for member in at_work)
    return replace(Activity(len(at_work), concurrency, *sums), **_decisions(name, alive))


def _decisions(name: str, alive: Sequence[Member]) -> dict[str, Any]:
    """What an `Activity` has of the decisions on a queue."""
    rates = [
        list(map(_number, found))
        for member in alive
        if isinstance(found := _table(member.report.facts.get("decisions")).get(name), list)
        and len(found) == 4
    ]
    decided, refused, passes, microseconds = map(sum, zip(*rates, strict=True)) if rates else (0.0,) * 4
    if not decided or not passes:
        return {}
    return {
        "decisions_per_second": round(decided, 1),
        "refused_share": round(min(1.0, refused / decided), 4),
        "answer_seconds": round(microseconds / passes / 1e6, 4),
    }


def link_overview(db: Database, queue: str | None = None) -> list[LinkStatus]:
    """The status of the links of one queue, or of all, with their rates and outboxes; raises `QueueNotConfigured`."""
    members = transact(db, lambda tr: read_members(tr.snapshot))
    now = current_version(db)
    alive = [member for member in members if member.is_alive(now)]
    found = _with_rates(link_status(db, queue), alive)
    names = transact(db, lambda tr: queue_names(tr.snapshot) if queue is None else [queue])
    return sorted([*found, *_outboxes(db, names, alive)], key=lambda each: (each.queue, each.link))


def _outboxes(db: Database, names: Sequence[str], alive: Sequence[Member]) -> list[LinkStatus]:
    """The outboxes of these queues, as links."""
    found = read_each(
        db, names, lambda tr, name: _outbox_as_link(tr, name, alive), lambda name: [OutboxKeys(name).settings]
    )
    return [each for each in found if each is not None]


def _outbox_as_link(tr: Transaction, name: str, alive: Sequence[Member]) -> LinkStatus | None:
    """The outbox of a queue as one of its links, with the rows that its worker found latest; None if it has none.

    The rows are up to 2,000, and as of some seconds ago; they are not exact if there are more. They are unknown while
    no worker has read them, and their bytes always.
    """
    try:
        settings = read_settings(tr.snapshot, name)
        if settings is None:
            return None
        stopped, error = read_problem(tr.snapshot, name)
        is_paused = read_control(tr.snapshot, OutboxKeys(name)).paused
    except CorruptData as broken:
        return LinkStatus(name, OUTBOX, buckets=1, aside=None, error=str(broken))
    rows, has_more, oldest = _found_rows(name, alive, has_error=bool(error)) or (None, True, None)
    states = {"stopped": stopped, "paused": is_paused, "failing": bool(error)}
    return LinkStatus(
        name,
        OUTBOX,
        f"from cq_outbox in ${settings.url_env}",
        waiting_buckets=int(bool(rows)),
        buckets=1,
        rows=rows,
        exact=not has_more,
        oldest_seconds=None if oldest is None else max(0.0, round(runtime.time() - oldest, 3)),
        aside=None,
        state=next((state for state, holds in states.items() if holds), "active"),
        error=error,
    )


def _with_rates(links: Sequence[LinkStatus], alive: Sequence[Member]) -> list[LinkStatus]:
    """The links with the entries that these workers send a second."""
    sent: Counter[str] = Counter()
    for member in alive:
        sent.update({name: _number(rate) for name, rate in _table(member.report.facts.get("links")).items()})
    return [replace(each, entries_per_second=round(sent[f"{each.queue} {each.link}"], 1)) for each in links]


def _found_rows(
    name: str, alive: Sequence[Member], *, has_error: bool
) -> tuple[int, bool, float | None] | None:
    """The `SourceBacklog` in the latest row of a worker that has one; None if it is unknown."""
    for member in sorted(alive, key=lambda member: member.stamp, reverse=True):
        match _table(member.report.facts.get("backlogs")).get(name):
            case [int(rows), bool(has_more), float() | None as oldest_at] if rows or not has_error:
                # An outbox that fails and had no rows before may have some now.
                return int(_number(rows)), has_more, None if oldest_at is None else _number(oldest_at)
    return None


def _queues(facts: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """{queue: the numbers of `WorkerReports.facts`}."""
    found = _table(facts.get("queues"))
    return {
        name: list(map(_number, numbers))
        for name, numbers in found.items()
        if isinstance(numbers, list) and len(numbers) == _NUMBERS
    }


def _tasks(found: object) -> dict[str, int]:
    """{kind: number} of the owned tasks; a version of cq that does not know a kind shows it, too."""
    numbers = list(_table(found).items())[:_MAX_KINDS]
    return {printable(str(kind)): int(_number(number)) for kind, number in numbers}


def _table(found: object) -> Mapping[Any, Any]:
    return found if isinstance(found, Mapping) else {}


def _number(found: object) -> float:
    """The number itself; 0 for any other object, and for numbers that workers do not write."""
    return found if isinstance(found, int | float) and 0 <= found < _MOST else 0
