"""Coalescing of work: in a busy worker, a task that is notified soon after its last step waits before the next.

Each step has a fixed cost, mainly its transaction and commit. Under constant load, steps that start at once find little
work each, and take processor and store time from the callers that add. So the pause between two steps of a task grows
with the worker's load, up to the limit of the task's kind; in a worker with spare time no task waits. A backlog that a
step leaves is processed without a pause.
"""

from __future__ import annotations

from math import exp
from threading import Lock
from typing import Final

from cq import runtime
from cq.observers.scheduling.task import Job

_IDLE_LOAD: Final = 0.2  # no pause up to this load
_BUSY_LOAD: Final = 0.7  # the whole pause from this load on
_AVERAGE_SECONDS: Final = 0.5  # time constant of the load's moving average


class Coalescer:
    """A worker's load, and the pauses of its tasks that follow from it; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._load = 0.0
        self._updated = runtime.monotonic()

    def record_step(self, job: Job, begun: float) -> None:
        """Add a job's step that began at `begun` and ends now to the load, and set the job's earliest next step."""
        now = runtime.monotonic()
        with self._lock:
            # Steps run in parallel threads, so the load may exceed 1.
            self._load = (
                self._load * exp((self._updated - now) / _AVERAGE_SECONDS) + (now - begun) / _AVERAGE_SECONDS
            )
            self._updated = now
            share = (self._load - _IDLE_LOAD) / (_BUSY_LOAD - _IDLE_LOAD)
        job.rests_until = begun + job.task.coalesce_seconds * min(1.0, max(0.0, share))

    def pause(self, job: Job) -> float:
        """The seconds that a notified job must wait before its next step."""
        return max(0.0, job.rests_until - runtime.monotonic())
