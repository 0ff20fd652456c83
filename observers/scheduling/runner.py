"""Runs tasks in a few threads: none twice at once, each again as soon or as late as it asks, all in fair order."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

from cq import runtime
from cq.observers.scheduling.fair_queue import FairQueue

T = TypeVar("T", bound=Hashable)

DONE: Final = -1.0
"""Returned by `work`: not again, until the task is submitted anew."""


class Lane(NamedTuple):
    """Where a task waits: its queue, the queue's weight, and how many of a kind may run at once, see `FairQueue`."""

    queue: str
    weight: float
    kind: Hashable = None
    width: int | None = None


def _one_lane(task: object) -> Lane:
    return Lane("", 1.0)


class Runner(Generic[T]):
    """A pool of threads that runs `work(task)` for each submitted task.

    Args:
        work: returns after how many seconds the task is to run again: 0 for as soon as it is its turn, `DONE` for not
            at all.
        failed: called with the task and what `work` has raised, in its stead.
        after: called with a task that is done or was discarded while it ran, when it may already be submitted again;
            must not raise.
        threads: how many tasks run at once.
        lane: where a task waits.
        age: for how many seconds what is left of a task has waited, asked when it waits for its turn.

    Attributes:
        steps: how often a task has run so far.
    """

    def __init__(
        self,
        work: Callable[[T], float],
        failed: Callable[[T, BaseException], float],
        after: Callable[[T], None],
        threads: int,
        *,
        lane: Callable[[T], Lane] = _one_lane,
        age: Callable[[T], float] = lambda task: 0.0,
    ) -> None:
        self._work, self._failed, self._after = work, failed, after
        self._lane, self._age = lane, age
        self._changed = runtime.condition()
        self._ready: FairQueue[tuple[int, T]] = FairQueue()
        self._later: list[tuple[float, int, T]] = []
        self._tickets: dict[T, int] = {}  # of the tasks under way: what waits with another ticket is no more
        self._waiting: dict[T, float] = {}
        self._running: dict[T, float] = {}
        self._numbers = count()
        self._latest = runtime.monotonic()
        self.steps = 0
        self._closed = False
        self._threads = threads
        self._started = False

    def submit(self, task: T, seconds: float = 0.0) -> None:
        """Run the task, at its turn or later, unless it is already under way or the runner is closed; never blocks."""
        with self._changed:
            if self._closed or task in self._tickets or task in self._running:
                return
            if not self._started:
                self._started = True
                for number in range(self._threads):
                    runtime.start_thread(self._loop, f"cq-worker-{number}")
            self._wait(task, seconds)

    def discard(self, task: T) -> bool:
        """Run the task no more; whether it is not running any more. If it is, `after` will be called with it."""
        with self._changed:
            self._tickets.pop(task, None)
            self._waiting.pop(task, None)
            self._changed.notify_all()
            return task not in self._running

    def is_busy(self, task: T) -> bool:
        """Whether the task is running, waiting for its turn, or waiting for its time."""
        return task in self._tickets or task in self._running

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no task is under way, for so long at most; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._tickets and not self._running, seconds)

    def stuck(self, seconds: float) -> list[T]:
        """The tasks that have been running for longer, and when nothing else came to an end either, those behind."""
        with self._changed:
            horizon = runtime.monotonic() - seconds
            found = [task for task, since in self._running.items() if since < horizon]
            if self._latest < horizon and len(found) == self._threads:
                found += [task for task, since in self._waiting.items() if since < horizon]
            return found

    def close(self, seconds: float | None = None) -> bool:
        """Take no more tasks and forget those that wait; wait for those that run, whether all came to an end."""
        with self._changed:
            self._closed = True
            self._tickets.clear()
            self._waiting.clear()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._running, seconds)

    # With the lock held

    def _wait(self, task: T, seconds: float) -> None:
        """Have a task wait for its turn, or first for its time."""
        ticket = self._tickets[task] = next(self._numbers)
        if seconds > 0.0:
            heappush(self._later, (runtime.monotonic() + seconds, ticket, task))
        else:
            self._queue(ticket, task)
        self._changed.notify()

    def _queue(self, ticket: int, task: T) -> None:
        now = runtime.monotonic()
        lane = self._lane(task)
        self._waiting[task] = now
        since = now - self._age(task)
        self._ready.put((ticket, task), lane.queue, lane.weight, since, lane.kind, lane.width)

    def _next(self) -> T | None:
        """The next task, once there is one; None when the runner is closed."""
        while not self._closed:
            now = runtime.monotonic()
            while self._later and self._later[0][0] <= now:
                _, ticket, task = heappop(self._later)
                if self._tickets.get(task) == ticket:
                    self._queue(ticket, task)
            taken = self._ready.take(max(1, self._threads - 1))
            if taken is None:
                self._changed.wait(max(0.0, self._later[0][0] - now) if self._later else None)
                continue
            _, (ticket, task) = taken
            if self._tickets.get(task) != ticket or task in self._running:
                self._give_back(task, 0.0)
                continue
            del self._waiting[task]
            self._running[task] = now
            return task
        return None

    def _give_back(self, task: T, seconds: float) -> None:
        lane = self._lane(task)
        self._ready.done(lane.queue, seconds, lane.kind)

    def _cost(self, elapsed: float, used: float) -> float:
        """The seconds of the whole pool that a step has cost its queue: its dominant share (Ghodsi et al. 2011).

        A step holds one of the pool's threads while it lasts. While it uses a processor it holds the interpreter, and
        so delays all other threads. Elapsed time alone would charge queues for the time that others make them wait.
        """
        return max(elapsed / self._threads, used)

    # In the threads

    def _loop(self) -> None:
        while True:
            with self._changed:
                task = self._next()
            if task is None:
                return
            self._step(task)

    def _step(self, task: T) -> None:
        used = runtime.thread_seconds()
        try:
            seconds = self._work(task)
        except BaseException as error:  # noqa: BLE001 - nothing that a task does may end its thread unnoticed
            seconds = self._failed(task, error)
        used = runtime.thread_seconds() - used
        with self._changed:
            self.steps += 1
            self._latest = runtime.monotonic()
            self._give_back(task, self._cost(self._latest - self._running.pop(task), used))
            is_over = task not in self._tickets or seconds < 0.0
            if is_over:
                self._tickets.pop(task, None)
            elif not self._closed:
                self._wait(task, seconds)
            closed = self._closed
            self._changed.notify_all()
        if is_over and not closed:
            self._after(task)
