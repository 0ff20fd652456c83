"""Tasks that change hands although their workers live: those that fail again and again, or do not get on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cq import runtime
from cq.observers.scheduling.notifications import find_notified
from cq.observers.scheduling.task import Job
from cq.store.api import Database, Transaction
from cq.store.transact import transact

GIVEN_SECONDS: Final = 60.0
"""For how long others may try a task that fails again and again: one of them may reach what this worker cannot."""
MANY_FAILURES: Final = 5
"""In a row, before others may try."""


class ReleasedTasks:
    """The tasks that a worker lets others try."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def update(self, jobs: Iterable[Job]) -> set[str]:
        """Their names, with those that have failed too often by now."""
        now = runtime.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        for job in jobs:
            if job.owned and job.failures >= MANY_FAILURES:
                self._until[str(job.task_id)] = now + GIVEN_SECONDS
            elif job.owned and not job.failures and not job.is_fresh:
                self._until.pop(str(job.task_id), None)  # it has run since
        return set(self._until)


class StalledTasks:
    """The tasks of others that have work and do not get on: their worker hangs, or cannot do them and does not know."""

    def __init__(self) -> None:
        self._seen: dict[Job, tuple[bytes | None, int]] = {}

    def find(self, db: Database, jobs: Iterable[Job]) -> dict[Job, int]:
        """Those of these jobs that had work before, too, and have not got on since; for how many looks."""
        before, signs = self._seen, transact(db, lambda tr: _read_signs(tr, jobs))
        self._seen = {
            job: (sign, before[job][1] + 1 if job in before and before[job][0] == sign else 0)
            for job, sign in signs.items()
        }
        return {job: looks for job, (_, looks) in self._seen.items() if looks}


def _read_signs(tr: Transaction, jobs: Iterable[Job]) -> dict[Job, bytes | None]:
    """The jobs that are notified, with what tells whether they have got on since another look."""
    notified = find_notified(tr.snapshot, jobs)
    signs = [
        (job, tr.snapshot.get(job.task.progress_key)) for job in notified if job.task.progress_key is not None
    ]
    return {job: sign.value for job, sign in signs}
