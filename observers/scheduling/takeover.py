"""Tasks that other workers may run although their owner lives: tasks that fail repeatedly, and stalled tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cq import runtime
from cq.observers.scheduling.notifications import find_notified
from cq.observers.scheduling.task import Job
from cq.store.api import Database, Transaction
from cq.store.transact import transact

RELEASE_SECONDS: Final = 60.0
"""How long other workers may try a task that fails repeatedly: the fault may be on this machine only."""
MANY_FAILURES: Final = 5
"""Consecutive failures after which a task is released."""


class ReleasedTasks:
    """The tasks that a worker releases to others as they fail repeatedly."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def update(self, jobs: Iterable[Job]) -> set[str]:
        """Release the tasks that have failed `MANY_FAILURES` times; returns the names of all released tasks."""
        now = runtime.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        for job in jobs:
            if job.owned and job.failures >= MANY_FAILURES:
                self._until[str(job.task_id)] = now + RELEASE_SECONDS
            elif job.owned and not job.failures and not job.is_fresh:
                self._until.pop(str(job.task_id), None)  # it has succeeded since
        return set(self._until)


class StalledTasks:
    """Other workers' tasks that have work and make no progress: the owner hangs, or fails without noticing."""

    def __init__(self) -> None:
        self._seen: dict[Job, tuple[bytes | None, int]] = {}

    def find(self, db: Database, jobs: Iterable[Job]) -> dict[Job, int]:
        """The jobs that had work in an earlier call too, without progress since; each with the number of such calls."""
        before, progress = self._seen, transact(db, lambda tr: _read_progress(tr, jobs))
        self._seen = {
            job: (value, before[job][1] + 1 if job in before and before[job][0] == value else 0)
            for job, value in progress.items()
        }
        return {job: calls for job, (_, calls) in self._seen.items() if calls}


def _read_progress(tr: Transaction, jobs: Iterable[Job]) -> dict[Job, bytes | None]:
    """{notified and monitored job that does not wait by design: the value of its progress key}."""
    notified = find_notified(tr.snapshot, jobs)
    values = [
        (job, tr.snapshot.get(job.task.progress_key))
        for job in notified
        if job.task.progress_key is not None and not job.task.waits(tr.snapshot)
    ]
    return {job: value.value for job, value in values}
