"""Runs tasks in a few threads: none twice at once, each again as soon or as late as it asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

DONE: Final = -1.0
"""Returned by `work`: not again, until the task is submitted anew."""


class Runner(Generic[T]):
    """A pool of threads that runs `work(task)` for each submitted task.

    Args:
        work: returns after how many seconds the task is to run again: 0 for at once, behind the other tasks that wait,
            `DONE` for not at all. It must not raise.
        after: called with a task that is done, when it may already be submitted again.
        threads: how many tasks run at once.
    """

    def __init__(self, work: Callable[[T], float], after: Callable[[T], None], threads: int) -> None:
        self._work = work
        self._after = after
        self._idle = threading.Condition()
        self._busy: set[T] = set()
        self._timers: dict[T, threading.Timer] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cq-pass")

    def submit(self, task: T) -> None:
        """Run the task, unless it is already under way or the runner is closed; never blocks for long."""
        with self._idle:
            if self._closed or task in self._busy:
                return
            self._busy.add(task)
            self._pool.submit(self._run, task)

    def is_busy(self, task: T) -> bool:
        """Whether the task is running, waiting for a thread, or waiting for its time."""
        return task in self._busy

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no task is under way, for so long at most; returns whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, seconds)

    def close(self) -> None:
        """Take no more tasks, forget those that wait, and wait for those that run."""
        with self._idle:
            self._closed = True
            timers = list(self._timers.values())
        for timer in timers:
            timer.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: T) -> None:
        pause = self._work(task)
        with self._idle:
            if pause == 0.0 and not self._closed:
                self._pool.submit(self._run, task)
                return
            if pause > 0.0 and not self._closed:
                timer = self._timers[task] = threading.Timer(pause, self._resume, [task])
                timer.daemon = True
                timer.start()
                return
            self._busy.discard(task)
            self._idle.notify_all()
            if self._closed:
                return
        self._after(task)

    def _resume(self, task: T) -> None:
        with self._idle:
            self._timers.pop(task, None)
            if not self._closed:
                self._pool.submit(self._run, task)
