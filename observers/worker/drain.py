"""The end of a drain: run what observers need once all is combined, and report what could not be combined."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cq import runtime
from cq.errors import CqError
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Job
from cq.observers.telemetry.bus import emit
from cq.observers.worker.workload import Workload
from cq.store.api import error_code

PATIENCE_SECONDS: Final = 10.0
"""How long tasks may go on failing, or ask for pauses."""
MOST_SECONDS: Final = 600.0
"""How long a task may go on that always has more to do."""


def finish(jobs: Iterable[Job], stopping: threading.Event, failed: Callable[[Job, Exception], float]) -> None:
    """Run the jobs that are notified until they have nothing to do, or go on failing.

    Args:
        jobs: those of tasks that go by time are left out.
        stopping: set to end early.
        failed: called with a job and the store's error; returns how long to pause.
    """
    left = [job for job in jobs if job.task.notification]
    deadline = runtime.monotonic() + PATIENCE_SECONDS
    while left:
        again = {job: _run(job, deadline + MOST_SECONDS, stopping, failed) for job in left}
        left = [job for job, seconds in again.items() if seconds != DONE]
        seconds = min((again[job] for job in left), default=0.0)
        if runtime.monotonic() + seconds > deadline or stopping.wait(seconds):
            break
    for job in left:
        reason = job.task.problem or "it always has more to do"
        emit("work_left", queue=job.task_id.queue, task=str(job), reason=reason)


def report_left(work: Workload, names: Collection[str]) -> None:
    """Report the queues that a drain could not combine: by an error if `names` has them, else by `work_left`.

    Errors that are not cq's are raised in any case: the store fails, or cq has a defect. This also holds for tasks that
    `finish` gave up. Queues that the worker leaves alone were reported when it began.
    """
    for job in work.others:
        if job.given_up is not None:
            raise job.given_up
    for name, error in work.left.items():
        if name in names or not isinstance(error, CqError):
            raise error
        if not work.problem(name):
            emit("work_left", queue=name, task=f"queue {name!r}", reason=str(error))


def _run(
    job: Job, deadline: float, stopping: threading.Event, failed: Callable[[Job, Exception], float]
) -> float:
    """Run a job until it has nothing to do or wants to wait, or has had its time."""
    try:
        while (seconds := job.task.run()) == 0.0 and not stopping.is_set():
            job.failures = 0  # `failed` counts those in a row
            if runtime.monotonic() > deadline:
                break
    except Exception as error:
        if error_code(error) is None:
            raise
        return failed(job, error)
    return seconds
