"""The steps of a drain before and after it combines: jobs that add updates, the other jobs, and queues that remain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cq import runtime
from cq.errors import CorruptData, CqError
from cq.keys.link import LinkKeys, OutboxKeys
from cq.observers.links.failure_note import NotedTask
from cq.observers.links.outbox.state import read_problem
from cq.observers.monitoring.link_status import link_status
from cq.observers.scheduling.members import EXPIRY, LINK, OUTBOX
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.worker.workload import Workload
from cq.store.api import Database, error_code
from cq.store.transact import transact

PATIENCE_SECONDS: Final = 10.0
"""How long tasks may fail repeatedly, or ask for pauses, while none of the others ends."""
MAX_SECONDS: Final = 600.0
"""How long a task may run that never runs out of work."""

_NAMES: Final = {"publish": "cloud"}
"""{kind of tasks: the noun for all of a queue's tasks of this kind}."""


def add_updates(work: Workload, stopping: threading.Event) -> None:
    """Run the jobs that make work for passes, of outboxes and expiries: the first step of a drain.

    A queue whose expiry cannot be read is noted in `work.left`. A failing outbox is left to `finish`, which runs it
    again. Raises the store's `FDBError`.
    """
    deadline = runtime.monotonic() + MAX_SECONDS
    for job in work.others:
        if job.task_id.kind in (OUTBOX, EXPIRY):
            if stopping.is_set():
                return
            try:
                _run(job, deadline, stopping)
            except CorruptData as error:  # must not stop the work on other queues
                work.left[job.task_id.queue] = error


def finish(
    jobs: Iterable[Job], stopping: threading.Event, failed: Callable[[Job, Exception], float]
) -> list[Job]:
    """Run the jobs until they are done, or none has ended for `PATIENCE_SECONDS`; returns the rest.

    Args:
        jobs: jobs to run; those that run by time, without a notification, are skipped.
        stopping: set to end early.
        failed: called with a job and the store's error; returns the pause in seconds.
    """
    left = [job for job in jobs if job.task.notification]
    deadline = runtime.monotonic() + PATIENCE_SECONDS
    while left:
        again = {job: _tried(job, deadline + MAX_SECONDS, stopping, failed) for job in left}
        before, left = left, [job for job, seconds in again.items() if seconds >= 0.0]
        if len(left) < len(before):  # a keeper, for example, waits for its buckets, which may take long
            deadline = runtime.monotonic() + PATIENCE_SECONDS
        seconds = min((again[job] for job in left), default=0.0)
        if runtime.monotonic() + seconds > deadline or stopping.wait(seconds):
            break
    return left


class Left:
    """The work that a drain leaves undone, reported by `work_left`, once for each queue and kind of work.

    Attributes:
        lines: a line for each.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, queue: str, task: str, reason: str) -> None:
        """Report that a task of a queue has work left."""
        emit("work_left", queue=queue, task=task, reason=reason)
        self.lines.append(f"{task}: {reason}")

    def add_jobs(self, jobs: Iterable[Job], *, is_stopped: bool) -> None:
        """Report the jobs that `finish` has returned."""
        of_part: dict[str, list[Job]] = {}
        for job in jobs:
            of_part.setdefault(job.task_id.parts[-1], []).append(job)
        for some in of_part.values():
            kind, queue, _ = some[0].task_id
            problems = [job.task.problem for job in some if job.task.problem]
            reason = (
                "the drain was stopped" if is_stopped else next(iter(problems), "it always has more to do")
            )
            name = _NAMES.get(kind)
            if isinstance(some[0].task, NotedTask):
                name = f"link {some[0].task.notes.link!r}"
            self.add(queue, str(some[0]) if name is None else f"{name} of queue {queue!r}", reason)

    def add_queues(self, work: Workload, names: Collection[str]) -> None:
        """Report the queues that could not be combined; an error of a queue in `names` is raised.

        Errors that are not cq's are always raised: the store fails, or cq has a defect. This also holds for tasks that
        `finish` gave up.
        """
        for job in work.others:
            if job.given_up is not None:
                raise job.given_up
        for name, error in work.left.items():
            if name in names or not isinstance(error, CqError):
                raise error
            self.add(name, f"queue {name!r}", str(error))

    def add_lacking(self, db: Database, work: Workload, names: Collection[str]) -> None:
        """Report links with entries, and outboxes, that this process has no job for: it lacks a URL, for example."""
        here = {(job.task_id.kind, job.task_id.queue) for job in work.others}
        if LINK in work.roles:
            sent = {job.task.notes.prefix for job in work.others if isinstance(job.task, NotedTask)}
            for link in link_status(db):
                has_job = LinkKeys(link.queue, link.link).prefix in sent
                if link.waiting_buckets and not has_job and (not names or link.queue in names):
                    reason = link.error or "this worker has no target for it"
                    self.add(link.queue, f"link {link.link!r} of queue {link.queue!r}", reason)
        if OUTBOX in work.roles:
            for name in work.found:
                key = OutboxKeys(name).settings
                if (OUTBOX, name) not in here and transact(db, lambda tr: tr.snapshot.get(key).present()):  # noqa: B023
                    _, problem = transact(db, lambda tr: read_problem(tr.snapshot, name))  # noqa: B023
                    reason = problem or work.problem(name) or "this worker cannot read its rows"
                    self.add(name, f"link 'outbox' of queue {name!r}", reason)


def _tried(
    job: Job, deadline: float, stopping: threading.Event, failed: Callable[[Job, Exception], float]
) -> float:
    """As `_run`; after an error of the store, the pause that `failed` returns."""
    try:
        return _run(job, deadline, stopping)
    except Exception as error:
        if error_code(error) is None:
            raise
        return failed(job, error)


def _run(job: Job, deadline: float, stopping: threading.Event) -> float:
    """Run a job until it is done, asks for a pause, or reaches the deadline; returns as `Task.run`."""
    while (seconds := job.run()) == 0.0 and not stopping.is_set():
        job.failures = 0  # `failed` counts consecutive failures
        if runtime.monotonic() > deadline:
            break
    return seconds
