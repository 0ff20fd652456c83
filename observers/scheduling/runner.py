"""A pool of threads that runs repeating tasks in fair order, never one task twice at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

from cq import runtime
from cq.observers.scheduling.fair_queue import FairQueue, Lane

T = TypeVar("T", bound=Hashable)

DONE: Final = -1.0
"""Returned by `work`: do not run the task again until it is submitted again."""
CAUGHT_UP: Final = -2.0
"""As `DONE`, of a step of a `Task` that has found work: more may follow soon."""

PATIENCE_SECONDS = 5.0
"""How long a step that waits for another system keeps its thread from other tasks."""
_MAX_HANGING: Final = 32
"""Limit of the threads for steps that wait longer."""
_HELD_SECONDS: Final = 1.0
"""How soon to check again whether a step that hangs has ended."""


def _one_lane(task: object) -> Lane:
    return Lane("")


class Runner(Generic[T]):
    """A pool of threads that runs `work(task)` for each submitted task.

    A step that waits for another system, or calls code of the application, may hang. After `PATIENCE_SECONDS` another
    thread takes its thread's place, and no task of the same queue and kind begins until it ends: it would hang, too.
    Code of the application may be slow for one key alone, so it takes half as many of such steps as there are threads.

    Args:
        work: runs one step; returns the seconds until the next: 0 for as soon as possible, `DONE` for no other.
        failed: called with the task and the error that `work` raised; returns a number as `work` does.
        after: called with a task once it is done, or was discarded while it ran; another thread may already have
            submitted it again; must not raise.
        threads: how many tasks run at once.
        lane: a task's place in the order.
        waited_seconds: how long a task's oldest work has waited; called when the task becomes ready.

    """

    def __init__(
        self,
        work: Callable[[T], float],
        failed: Callable[[T, BaseException], float],
        after: Callable[[T], None],
        threads: int,
        *,
        lane: Callable[[T], Lane] = _one_lane,
        waited_seconds: Callable[[T], float] = lambda task: 0.0,
    ) -> None:
        self._work, self._failed, self._after = work, failed, after
        self._lane, self._waited_seconds = lane, waited_seconds
        # Each change wakes one thread of the pool, and a thread that takes a task wakes the next: when each step woke
        # all threads, they took a seventh of a busy worker's processor time. Callers wait for ends by `_ended`.
        self._changed, self._ended = runtime.condition(), runtime.condition()
        self._ready: FairQueue[tuple[int, T]] = FairQueue(threads)
        self._later: list[tuple[float, int, T]] = []
        # Heap entries cannot be removed cheaply, so discarded tasks stay: an entry is valid only with this ticket.
        self._tickets: dict[T, int] = {}
        self._waiting: dict[T, float] = {}
        self._running: dict[T, float] = {}
        self._hanging: dict[T, tuple[str, Hashable]] = {}  # running tasks without a place in the pool
        self._numbers = count()
        self._has_run = False
        self._closed = False
        self._threads = threads
        self._started = 0  # threads

    def submit(self, task: T, seconds: float = 0.0) -> None:
        """Run the task in its turn, after `seconds` seconds; never blocks.

        Ignored for a task that is running or submitted already, and by a closed runner. Raises `RuntimeError` if the
        system starts no more threads.
        """
        with self._changed:
            if self._closed or task in self._tickets or task in self._running:
                return
            while self._started < self._threads:  # at the limit of the system's threads, a later call goes on
                runtime.start_thread(self._loop, f"cq-worker-{self._started}")
                self._started += 1
            self._wait(task, seconds)

    def replace_hanging(self) -> None:
        """Give the places of steps that hang to other threads.

        The threads do so themselves, unless all of them hang.
        """
        with self._changed:
            self._replace_hanging(runtime.monotonic())

    def discard(self, task: T) -> bool:
        """Do not run the task again; returns whether it is not running. `after` is called with it once it has ended."""
        with self._changed:
            self._tickets.pop(task, None)
            self._waiting.pop(task, None)
            is_running = task in self._running
        self._notify_ended()
        return not is_running

    def is_busy(self, task: T) -> bool:
        """Whether the task is running, ready or delayed."""
        return task in self._tickets or task in self._running

    def has_run(self) -> bool:
        """Whether any step has ended since the previous call."""
        has_run, self._has_run = self._has_run, False
        return has_run

    def wait_idle(self, seconds: float) -> bool:
        """Wait up to `seconds` seconds for all submitted tasks to end; returns whether they have."""
        with self._ended:
            # A task has a ticket until it is over, also while it runs.
            return self._ended.wait_for(lambda: not self._tickets and not self._running, seconds)

    def stuck(self, seconds: float) -> list[T]:
        """Tasks running longer than `seconds`, and tasks that have waited as long because those block their threads."""
        with self._changed:
            horizon = runtime.monotonic() - seconds
            found = [task for task, since in self._running.items() if since < horizon]
            placed = [task for task in found if task not in self._hanging]
            blocks_all = len(placed) == self._threads
            blocks_outside = sum(self._lane(task).is_outside for task in placed) == self._ready.max_outside
            return found + [
                task
                for task, since in self._waiting.items()
                if since < horizon
                and (blocks_all or (blocks_outside and self._lane(task).is_outside) or self._is_held(task))
            ]

    def close(self, seconds: float | None = None) -> bool:
        """Discard all tasks, and wait up to `seconds` for the running ones; returns whether all have ended."""
        with self._changed:
            self._closed = True
            self._tickets.clear()
            self._waiting.clear()
            self._changed.notify_all()
        with self._ended:
            return self._ended.wait_for(lambda: not self._running, seconds)

    # With the lock held

    def _wait(self, task: T, seconds: float) -> None:
        """Add a task to the ready tasks, at once or after `seconds`."""
        ticket = self._tickets[task] = next(self._numbers)
        if seconds > 0.0:
            heappush(self._later, (runtime.monotonic() + seconds, ticket, task))
        else:
            self._queue(ticket, task)
        self._changed.notify()

    def _queue(self, ticket: int, task: T) -> None:
        now = runtime.monotonic()
        lane = self._lane(task)
        self._waiting.setdefault(task, now)
        if self._is_held(task):
            heappush(self._later, (now + _HELD_SECONDS, ticket, task))
            return
        since = now - self._waited_seconds(task)
        self._ready.put((ticket, task), lane, since)

    def _next(self) -> T | None:
        """Wait for the next task and mark it as running; None once the runner is closed."""
        while not self._closed:
            now = runtime.monotonic()
            while self._later and self._later[0][0] <= now:
                _, ticket, task = heappop(self._later)
                if self._tickets.get(task) == ticket:
                    self._queue(ticket, task)
            self._replace_hanging(now)
            taken = self._ready.take()
            if taken is None:
                seconds = max(0.0, self._later[0][0] - now) if self._later else None
                if self._waiting:  # maybe for steps that hang
                    seconds = _HELD_SECONDS if seconds is None else min(seconds, _HELD_SECONDS)
                self._changed.wait(seconds)
                continue
            _, (ticket, task) = taken
            if self._tickets.get(task) != ticket or task in self._running:
                self._charge(task, 0.0)  # discarded since, so its kind's place is free again
                continue
            if self._is_held(task):
                self._charge(task, 0.0)
                self._queue(ticket, task)
                continue
            del self._waiting[task]
            self._running[task] = now
            self._changed.notify()
            return task
        return None

    def _replace_hanging(self, now: float) -> None:
        """Give the places of steps that hang to other threads, if tasks wait."""
        if not self._waiting:
            return
        for task, since in self._running.items():
            if now - since <= PATIENCE_SECONDS or task in self._hanging or len(self._hanging) == _MAX_HANGING:
                continue
            lane = self._lane(task)
            if lane.is_outside or lane.calls_application:
                try:
                    runtime.start_thread(self._loop, "cq-worker-in-place")
                except RuntimeError:  # the system starts no more threads
                    return
                self._hanging[task] = lane.queue, lane.kind
                # Code of the application may use a processor, for how long is known only at its end.
                self._charge(task, self._cost(now - since, now - since if lane.calls_application else 0.0))

    def _is_held(self, task: T) -> bool:
        """Whether a task must wait, because others of its lane and kind hang."""
        if not self._hanging:
            return False
        lane = self._lane(task)
        hanging = list(self._hanging.values()).count((lane.queue, lane.kind))
        return hanging >= (max(1, self._threads // 2) if lane.calls_application else 1)

    def _charge(self, task: T, seconds: float) -> None:
        """End a taken task's turn, and charge its queue with `seconds`."""
        self._ready.done(self._lane(task), seconds)

    def _cost(self, elapsed: float, used: float) -> float:
        """The cost of a step in seconds of the whole pool: its dominant share (Ghodsi et al. 2011).

        A step holds one of the pool's threads for `elapsed` seconds. For `used` seconds of processor time it holds the
        interpreter, and so delays all other threads. Elapsed time alone would charge a queue for delays by others.
        """
        return max(elapsed / self._threads, used)

    # In the threads

    def _loop(self) -> None:
        while True:
            with self._changed:
                task = self._next()
            if task is None or not self._step(task):
                return

    def _notify_ended(self) -> None:
        with self._ended:
            self._ended.notify_all()

    def _step(self, task: T) -> bool:
        """Run a step; returns whether the thread still has its place in the pool."""
        used = runtime.thread_seconds()
        try:
            seconds = self._work(task)
        except BaseException as error:  # noqa: BLE001 - an error of a task must not end the thread unnoticed
            seconds = self._failed(task, error)
        used = runtime.thread_seconds() - used
        with self._changed:
            self._has_run = True
            elapsed = runtime.monotonic() - self._running.pop(task)
            has_place = self._hanging.pop(task, None) is None
            if has_place:
                self._charge(task, self._cost(elapsed, used))
            is_over = task not in self._tickets or seconds < 0.0
            if is_over:
                self._tickets.pop(task, None)
            elif not self._closed:
                self._wait(task, seconds)
            closed = self._closed
            self._changed.notify()
        self._notify_ended()
        # Without the lock: `after` reads the store and submits tasks.
        if is_over and not closed:
            self._after(task)
        return has_place
