"""Lets work come together while there is much of it: a task that is woken soon after its last step waits a little.

A step costs something whatever it finds, a transaction and its commit above all. While work comes all the time, steps
that begin at once find little each, and keep the processor and the store from whoever adds. So the busier a worker
is, the longer a task waits from the beginning of one step to the next, up to what its kind allows; in a worker
that has time to spare no task waits. What a step has left over is not waited with: a backlog is worked off at once.
"""

from __future__ import annotations

from math import exp
from threading import Lock
from typing import Final

from cq import runtime
from cq.observers.scheduling.task import Job

_IDLE: Final = 0.2
_BUSY: Final = 0.7
_SECONDS: Final = 0.5  # over which load is averaged, about


class Coalescer:
    """How busy a worker is, and how long its tasks wait because of that; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._load = 0.0
        self._at = runtime.monotonic()

    def ran(self, job: Job, begun: float) -> None:
        """A step of a job that began at that time has ended."""
        now = runtime.monotonic()
        with self._lock:
            self._load = self._load * exp((self._at - now) / _SECONDS) + (now - begun) / _SECONDS
            self._at = now
            share = (self._load - _IDLE) / (_BUSY - _IDLE)
        job.rests_until = begun + job.task.coalesce_seconds * min(1.0, max(0.0, share))

    def left(self, job: Job) -> float:
        """After how many seconds a job that has been woken is to run."""
        return max(0.0, job.rests_until - runtime.monotonic())
