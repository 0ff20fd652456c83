"""A worker's reports about itself: events, and the statistics in its row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.distribution import version
from cq.observers.links.task import LinkTask
from cq.observers.scheduling.members import COMBINE, Member
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import Counts, WorkerCounts
from cq.plain_text import describe

_MOST_QUEUES: Final = 100
_ERROR_CHARACTERS: Final = 300
_LEAST_SECONDS: Final = 1.0  # a rate over a shorter time is mostly noise


class LatestError(NamedTuple):
    """A worker's latest error: the text, and its time in seconds since 1970; without an error, empty and None."""

    text: str = ""
    at: int | None = None


class WorkerStatistics:
    """Statistics of one worker; for use by one thread.

    Args:
        totals: its counts so far.
        concurrency: how many passes it runs at once.
        clock: of this process, in seconds.
    """

    def __init__(
        self, totals: WorkerCounts, concurrency: int = 1, clock: Callable[[], float] = runtime.monotonic
    ) -> None:
        self._totals, self._concurrency, self._clock = totals, concurrency, clock
        self._version, self._started = version(), int(runtime.time())
        self._since = clock()
        self._before: dict[str, Counts] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._conflicts_per_second = 0.0

    def collect(self, tasks: Mapping[str, int], error: LatestError) -> dict[str, Any]:
        """The statistics as stored in a worker's row; rates are those since the previous beat.

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

        Lists up to 100 queues, those with the most passes since the previous beat, so that the row stays small.
        """
        counts = self._totals.queues.copy()
        self._measure(counts)
        busiest = sorted(counts, key=lambda name: (self._rates.get(name, (0.0,)), counts[name].passes))
        return {
            "version": self._version,
            "started": self._started,
            "tasks": dict(tasks),
            "buckets": tasks.get(COMBINE, 0),
            "concurrency": self._concurrency,
            "totals": self._totals.total.as_dict(),
            "queues": {name: self._of_queue(name, counts[name]) for name in busiest[-_MOST_QUEUES:]},
            "conflicts_per_second": self._conflicts_per_second,
            "error": error.text[:_ERROR_CHARACTERS],
            "error_at": error.at,
        }

    def _measure(self, counts: dict[str, Counts]) -> None:
        seconds = self._clock() - self._since
        if seconds < _LEAST_SECONDS:
            return
        self._since += seconds
        work = {name: now - self._before.get(name, Counts()) for name, now in counts.items()}
        self._rates = {name: (each.passes / seconds, each.updates / seconds) for name, each in work.items()}
        self._conflicts_per_second = round(sum(each.conflicts for each in work.values()) / seconds, 2)
        self._before = counts

    def _of_queue(self, name: str, counts: Counts) -> list[float]:
        passes, updates = self._rates.get(name, (0.0, 0.0))
        return [counts.passes, counts.updates, counts.conflicts, round(passes, 2), round(updates, 2)]


class SentRates:
    """The entries that a worker sends by its links each second, since the previous beat; for use by one thread."""

    def __init__(self, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._before: dict[int, int] = {}
        self._rates: dict[str, float] = {}

    def collect(self, jobs: Sequence[Job]) -> dict[str, float]:
        """{queue and link: entries a second}, of the 100 busiest links with a rate."""
        tasks = [job.task for job in jobs if isinstance(job.task, LinkTask)]
        seconds = self._clock() - self._since
        if seconds >= _LEAST_SECONDS:
            self._since += seconds
            sent: Counter[str] = Counter()
            for task in tasks:
                sent[f"{task.queue} {task.keys.link}"] += task.sent - self._before.get(id(task), 0)
            self._before = {id(task): task.sent for task in tasks}
            busiest = sent.most_common(_MOST_QUEUES)
            self._rates = {name: round(number / seconds, 1) for name, number in busiest if number}
        return self._rates


class WorkerReports:
    """Reports about one worker.

    Args:
        me: the worker.
        totals: its counts so far.
        concurrency: how many passes it runs at once.
        app: MODULE:APP of the option that named its application; or empty.
    """

    def __init__(self, me: Member, totals: WorkerCounts, concurrency: int, app: str = "") -> None:
        self._me, self._totals, self._app = me, totals, app
        self._statistics = WorkerStatistics(totals, concurrency)
        self._sent = SentRates()
        self._latest_error = LatestError()
        self._begun = runtime.monotonic()

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

    def shared(self, owned: Sequence[Job], taken: Iterable[Job], others: Sequence[Member]) -> None:
        """Report the tasks that the worker owns now, and those that it has taken over from stuck workers."""
        for job in taken:
            for member in others:
                if str(job.task_id) in member.report.stuck:
                    emit("task_taken_over", queue=job.task_id.queue, task=str(job), worker=member.id.hex())
        emit("tasks_shared", workers=1 + len(others), tasks=len(owned), buckets=_buckets(owned))

    def failed(self, job: Job, error: BaseException, pause: float) -> None:
        """Report a step that has raised an error and is retried after `pause` seconds."""
        text = describe(error)
        self._latest_error = LatestError(f"{job}: {text}", int(runtime.time()))
        seconds = runtime.monotonic() - job.begun
        emit("task_failed", queue=job.task_id.queue, task=str(job), error=text, pause=pause, seconds=seconds)

    def facts(self, owned: Sequence[Job]) -> dict[str, Any]:
        """The statistics for the worker's row: those of `WorkerStatistics.collect`, and facts about its tasks.

        `backlogs` is {queue: the fields of its task's `SourceBacklog`}, of the 100 with the oldest rows. `links` is
        {queue and link: entries sent a second}, of the 100 busiest. `app` is the application.
        """
        tasks = Counter(job.task_id.kind for job in owned)
        collected = self._statistics.collect(tasks, self._latest_error)
        return {
            **collected,
            "app": self._app,
            "backlogs": _backlogs(owned),
            "links": self._sent.collect(owned),
        }


def _backlogs(jobs: Sequence[Job]) -> dict[str, list[Any]]:
    found = {job.task_id.queue: backlog for job in jobs if (backlog := job.task.backlog) is not None}
    oldest = sorted(found, key=lambda queue: found[queue].oldest_at or inf)[:_MOST_QUEUES]
    return {queue: list(found[queue]) for queue in oldest}


def _buckets(jobs: Sequence[Job]) -> int:
    return sum(job.is_bucket for job in jobs)
