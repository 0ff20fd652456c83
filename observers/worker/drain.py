"""The steps of a drain before and after it combines: jobs that add updates, the other jobs, and queues that remain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cq import runtime
from cq.errors import CorruptData, CqError
from cq.observers.scheduling.members import EXPIRY, OUTBOX, WINDOW
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.worker.workload import Workload
from cq.store.api import error_code

PATIENCE_SECONDS: Final = 10.0
"""How long tasks may fail repeatedly, or ask for pauses."""
MOST_SECONDS: Final = 600.0
"""How long a task may run that never runs out of work."""


def add_updates(work: Workload, stopping: threading.Event) -> None:
    """Run the jobs that make work for passes, of windows, outboxes and expiries: the first step of a drain.

    A queue whose window cannot be read is noted in `work.left`. A failing outbox is left to `finish`, which runs it
    again. Raises the store's `FDBError`.
    """
    deadline = runtime.monotonic() + MOST_SECONDS
    for job in work.others:
        if job.task_id.kind in (WINDOW, OUTBOX, EXPIRY):
            if stopping.is_set():
                return
            try:
                _run(job, deadline, stopping)
            except CorruptData as error:  # must not stop the work on other queues
                work.left[job.task_id.queue] = error


def finish(jobs: Iterable[Job], stopping: threading.Event, failed: Callable[[Job, Exception], float]) -> None:
    """Run the jobs until they are done or fail for `PATIENCE_SECONDS`; report the rest by `work_left`.

    Args:
        jobs: jobs to run; those that run by time, without a notification, are skipped.
        stopping: set to end early.
        failed: called with a job and the store's error; returns the pause in seconds.
    """
    left = [job for job in jobs if job.task.notification]
    deadline = runtime.monotonic() + PATIENCE_SECONDS
    while left:
        again = {job: _tried(job, deadline + MOST_SECONDS, stopping, failed) for job in left}
        left = [job for job, seconds in again.items() if seconds != DONE]
        seconds = min((again[job] for job in left), default=0.0)
        if runtime.monotonic() + seconds > deadline or stopping.wait(seconds):
            break
    for job in left:
        reason = job.task.problem or "it always has more to do"
        emit("work_left", queue=job.task_id.queue, task=str(job), reason=reason)


def report_left(work: Workload, names: Collection[str]) -> None:
    """Report the queues that a drain could not combine: by an error if `names` contains them, else by `work_left`.

    Errors that are not cq's are always raised: the store fails, or cq has a defect. This also holds for tasks that
    `finish` gave up. Queues that the worker leaves alone were reported when it started.
    """
    for job in work.others:
        if job.given_up is not None:
            raise job.given_up
    for name, error in work.left.items():
        if name in names or not isinstance(error, CqError):
            raise error
        if not work.problem(name):
            emit("work_left", queue=name, task=f"queue {name!r}", reason=str(error))


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
