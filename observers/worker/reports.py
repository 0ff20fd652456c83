"""A worker's reports about itself: events, and the statistics in its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cq import runtime
from cq.distribution import version
from cq.observers.links.task import LinkTask
from cq.observers.scheduling.members import COMBINE, Member
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.plain_text import describe

H = TypeVar("H", bound=Hashable)

PROGRESS_SECONDS: Final = 10.0
"""How often a drain reports its progress."""
_MOST: Final = 100
_ERROR_CHARACTERS: Final = 300
_LEAST_SECONDS: Final = 1.0  # a rate over a shorter time is mostly noise


class LatestError(NamedTuple):
    """A worker's latest error: the text, and its time in seconds since 1970; without an error, empty and None."""

    text: str = ""
    at: int | None = None


class _Rates(Generic[H]):
    """The rates of counts, since the previous measurement that took long enough; for use by one thread."""

    def __init__(self) -> None:
        self._since = runtime.monotonic()
        self._before: Mapping[H, Sequence[int]] = {}
        self._latest: dict[H, list[float]] = {}

    def measure(self, counts: Mapping[H, Sequence[int]]) -> dict[H, list[float]]:
        """{name: how much each of its counts grows in a second}."""
        seconds = runtime.monotonic() - self._since
        if seconds >= _LEAST_SECONDS:
            self._since += seconds
            self._latest = {
                name: [
                    (now - then) / seconds
                    for now, then in zip(each, self._before.get(name, repeat(0)), strict=False)
                ]
                for name, each in counts.items()
            }
            self._before = counts
        return self._latest


class WorkerReports:
    """Reports about one worker; for use by one thread.

    Args:
        me: the worker.
        totals: its counts so far.
        concurrency: how many passes it runs at once.
        app: MODULE:APP of the option that named its application; or empty.
    """

    def __init__(
        self,
        me: Member,
        totals: WorkerCounts,
        concurrency: int = 1,
        app: str = "",
    ) -> None:
        self._me, self._totals, self._concurrency, self._app = me, totals, concurrency, app
        self._version, self._started = version(), int(runtime.time())
        self._work: _Rates[str] = _Rates()
        self._decided: _Rates[str] = _Rates()
        self._sent: _Rates[LinkTask] = _Rates()
        self._latest_error = LatestError()
        self._shares = (0, 0, 0)
        self._begun = runtime.monotonic()
        self._next_progress = PROGRESS_SECONDS

    def started(self) -> None:
        """Report the worker's start."""
        me = self._me
        emit(
            "worker_started",
            worker=me.id.hex(),
            host=me.host,
            pid=me.pid,
            roles=", ".join(sorted(me.roles)),
            queues=sorted(me.queues or ()),
        )

    def stopped(self) -> None:
        """Report the worker's end."""
        emit(
            "worker_stopped",
            worker=self._me.id.hex(),
            seconds=runtime.monotonic() - self._begun,
            passes=self._totals.total.passes,
            rows=self._totals.total.rows,
        )

    def going_on(self) -> None:
        """Report the work of a drain so far, every `PROGRESS_SECONDS`."""
        seconds = runtime.monotonic() - self._begun
        if seconds >= self._next_progress:
            self._next_progress = seconds + PROGRESS_SECONDS
            done = self._totals.total
            emit("drain_goes_on", seconds=seconds, passes=done.passes, rows=done.rows)

    def shared(self, owned: Sequence[Job], taken: Iterable[Job], others: Sequence[Member]) -> None:
        """Report the tasks that the worker owns now, and those that it has taken over from stuck workers."""
        for job in taken:
            for member in others:
                if str(job.task_id) in member.report.stuck:
                    emit("task_taken_over", queue=job.task_id.queue, task=str(job), worker=member.id.hex())
        shares = workers, tasks, buckets = 1 + len(others), len(owned), sum(job.is_bucket for job in owned)
        if shares != self._shares:
            self._shares = shares
            emit("tasks_shared", workers=workers, tasks=tasks, buckets=buckets)

    def failed(self, job: Job, error: BaseException, pause: float) -> None:
        """Report a step that has raised an error and is retried after `pause` seconds."""
        text = describe(error)
        self._latest_error = LatestError(f"{job}: {text}", int(runtime.time()))
        seconds = runtime.monotonic() - job.begun
        emit("task_failed", queue=job.task_id.queue, task=str(job), error=text, pause=pause, seconds=seconds)

    def facts(self, owned: Sequence[Job]) -> dict[str, Any]:
        """The statistics for the worker's row; rates are those since the previous beat.

            version    of cq
            started    in seconds since 1970
            tasks      {kind: number of owned tasks}
            buckets    owned
            concurrency  passes at once, at most
            totals     {name of a count: number}
            queues     {name: [passes, updates, conflicts, passes a second, updates a second]}
            conflicts_per_second  of all passes
            error      text of the latest one
            error_at   its time, in seconds since 1970; None without an error
            app        the application
            backlogs   {queue: the fields of its task's `SourceBacklog`}, of those with the oldest rows
            decisions  {queue: what each of `DecisionCounts` grows in a second}, of the busiest
            links      {queue and link: entries sent a second}, of the busiest

        Lists up to 100 queues, those with the most passes since the previous beat, and as many backlogs and links, so
        that the row stays small.
        """
        tasks = Counter(job.task_id.kind for job in owned)
        counts = {
            name: (each.passes, each.updates, each.conflicts)
            for name, each in self._totals.queues.copy().items()
        }
        rates = self._work.measure(counts)
        busiest = sorted(counts, key=lambda name: (rates.get(name, [0.0])[0], counts[name][0]))[-_MOST:]
        return {
            "version": self._version,
            "started": self._started,
            "tasks": dict(tasks),
            "buckets": tasks[COMBINE],
            "concurrency": self._concurrency,
            "totals": self._totals.total.as_dict(),
            "queues": {
                name: [*counts[name], *(round(rate, 2) for rate in rates.get(name, [0.0, 0.0])[:2])]
                for name in busiest
            },
            "conflicts_per_second": round(sum(each[2] for each in rates.values()), 2),
            "error": self._latest_error.text[:_ERROR_CHARACTERS],
            "error_at": self._latest_error.at,
            "app": self._app,
            "backlogs": _backlogs(owned),
            "decisions": self._decisions(),
            "links": self._sent_entries(owned),
        }

    def _decisions(self) -> dict[str, list[float]]:
        rates = self._decided.measure(self._totals.decisions.copy())
        busiest = sorted(rates, key=lambda name: rates[name][0])[-_MOST:]
        return {name: [round(rate, 2) for rate in rates[name]] for name in busiest if rates[name][0]}

    def _sent_entries(self, jobs: Sequence[Job]) -> dict[str, float]:
        tasks = {job.task: (job.task.sent,) for job in jobs if isinstance(job.task, LinkTask)}
        sent: Counter[str] = Counter()
        for task, (rate,) in self._sent.measure(tasks).items():
            sent[f"{task.queue} {task.keys.link}"] += rate  # type: ignore[assignment]
        return {name: round(rate, 1) for name, rate in sent.most_common(_MOST) if rate}


def _backlogs(jobs: Sequence[Job]) -> dict[str, list[Any]]:
    found = {job.task_id.queue: backlog for job in jobs if (backlog := job.task.backlog) is not None}
    oldest = sorted(found, key=lambda queue: found[queue].oldest_at or inf)[:_MOST]
    return {queue: list(found[queue]) for queue in oldest}
