"""A worker's reports about itself: events, and the statistics in its row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cq import runtime
from cq.observers.scheduling.members import Member
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.telemetry.worker_facts import WorkerStatistics
from cq.plain_text import describe


class WorkerReports:
    """Reports about one worker.

    Args:
        me: the worker.
        totals: its counts so far.
        concurrency: how many passes it runs at once.
    """

    def __init__(self, me: Member, totals: WorkerCounts, concurrency: int) -> None:
        self._me, self._totals = me, totals
        self._statistics = WorkerStatistics(totals, concurrency)
        self._latest_error = ""
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
            passes=self._totals.passes,
            rows=self._totals.rows,
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
        self._latest_error = f"{job}: {text}"
        emit("task_failed", queue=job.task_id.queue, task=str(job), error=text, pause=pause)

    def facts(self, owned: Sequence[Job]) -> dict[str, Any]:
        """The statistics for the worker's row, see `WorkerStatistics.collect`."""
        return self._statistics.collect(_buckets(owned), self._latest_error)


def _buckets(jobs: Sequence[Job]) -> int:
    return sum(job.is_bucket for job in jobs)
