"""What a worker tells of itself: by events, and with each beat."""

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
    """Tells how a worker fares.

    Args:
        me: the worker.
        totals: what it has done so far.
        concurrency: how many passes it has in flight at most.
    """

    def __init__(self, me: Member, totals: WorkerCounts, concurrency: int) -> None:
        self._me, self._totals = me, totals
        self._facts = WorkerStatistics(totals, concurrency)
        self._latest_error = ""
        self._begun = runtime.monotonic()

    def started(self) -> None:
        """The worker begins."""
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
        """The worker ends."""
        emit(
            "worker_stopped",
            worker=self._me.id.hex(),
            seconds=runtime.monotonic() - self._begun,
            passes=self._totals.passes,
            rows=self._totals.rows,
        )

    def shared(self, owned: Sequence[Job], taken: Iterable[Job], others: Sequence[Member]) -> None:
        """Tasks were shared out anew: these are its own, of which some were not before."""
        for job in taken:
            for member in others:
                if str(job.task_id) in member.report.stuck:
                    emit("task_taken_over", queue=job.task_id.queue, task=str(job), worker=member.id.hex())
        emit("tasks_shared", workers=1 + len(others), tasks=len(owned), buckets=_buckets(owned))

    def failed(self, job: Job, error: BaseException, pause: float) -> None:
        """A step has raised an error, and is taken again after so many seconds."""
        text = describe(error)
        self._latest_error = f"{job}: {text}"
        emit("task_failed", queue=job.task_id.queue, task=str(job), error=text, pause=pause)

    def facts(self, owned: Sequence[Job]) -> dict[str, Any]:
        """See `WorkerStatistics.collect`."""
        return self._facts.collect(_buckets(owned), self._latest_error)


def _buckets(jobs: Sequence[Job]) -> int:
    return sum(job.is_bucket for job in jobs)
