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
            `DONE` for not at all.
        failed: called with the task and what `work` has raised, in its stead.
        after: called with a task that is done, when it may already be submitted again; must not raise.
        threads: how many tasks run at once.
    """

    def __init__(
        self,
        work: Callable[[T], float],
        failed: Callable[[T, BaseException], float],
        after: Callable[[T], None],
        threads: int,
    ) -> None:
        self._work = work
        self._failed = failed
        self._after = after
        self._idle = threading.Condition()
        self._busy: set[T] = set()
        self._timers: dict[T, threading.Timer] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cq-worker")

    def submit(self, task: T, seconds: float = 0.0) -> None:
        """Run the task, at once or later, unless it is already under way or the runner is closed; never blocks."""
        with self._idle:
            if not self._closed and task not in self._busy:
                self._busy.add(task)
                self._again(task, seconds)

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
        try:
            seconds = self._work(task)
        except BaseException as error:  # noqa: BLE001 - nothing that a task does may end its thread unnoticed
            seconds = self._failed(task, error)
        with self._idle:
            if seconds >= 0.0 and not self._closed:
                self._again(task, seconds)
                return
            self._busy.discard(task)
            self._idle.notify_all()
            closed = self._closed
        if not closed:
            self._after(task)

    def _again(self, task: T, seconds: float) -> None:
        if seconds == 0.0:
            self._pool.submit(self._run, task)
            return
        timer = self._timers[task] = threading.Timer(seconds, self._resume, [task])
        timer.daemon = True
        timer.start()

    def _resume(self, task: T) -> None:
        with self._idle:
            self._timers.pop(task, None)
            if not self._closed:
                self._pool.submit(self._run, task)
