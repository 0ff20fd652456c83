"""A machine that exists only here: one clock, and tasks of many processes that take turns in an order drawn by a seed.

A task is a greenlet. It runs until it waits, which it does through the `SimMachine` that the hub puts in place of
`cq.runtime`, or in a call to the simulated store. Then the clock goes on to whoever is due next. Nothing runs at
once, nothing really waits, and nothing is drawn but from the seed: one number gives one run.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

from cq.runtime import Machine

START_NS: Final = 1_700_000_000 * 10**9
_COLLECT_TURNS: Final = 500
_TURN_SECONDS: Final = 20e-6  # what a turn takes at least


class Over(GreenletExit):  # type: ignore[misc]
    """Raised in the tasks that are left when the simulation is over, so that they end."""


class Process:
    """A process: its tasks die and stand still together.

    Attributes:
        skew: by how many seconds its clock of the day is wrong.
        dies_in, freezes_in: after how many turns it dies, or stands still; None for never.
        reborn: starts what takes its place when it has died.
        on_death: called when it dies.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.frozen_until = 0.0
        self.skew = 0.0
        self.dies_in: int | None = None
        self.freezes_in: int | None = None
        self.reborn: Callable[[], object] = lambda: None
        self.on_death: list[Callable[[], object]] = []

    def __str__(self) -> str:
        return self.name


class Task:
    """A thread of a process."""

    __slots__ = ("greenlet", "name", "process", "ticket")

    def __init__(self, process: Process, name: str, body: greenlet) -> None:
        self.process = process
        self.name = name
        self.greenlet = body
        self.ticket = 0  # what was to wake it with another one comes too late


class Hub:
    """The scheduler.

    Attributes:
        rng: what the schedule, the clocks and the faults are drawn from.
        clock: seconds since the simulation began.
        turns: how often a task has been given its turn.
        jumped: by how many seconds the store's clock is ahead.
        failures: what tasks have raised and nobody has caught.
        trace: called with each thing worth telling.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = 0.0
        self.turns = 0
        self.jumped = 0.0
        self.is_over = False
        self.failures: list[tuple[str, BaseException]] = []
        self.tasks: set[Task] = set()
        self.on_freeze: Callable[[Process], object] = lambda process: None
        self.on_doom: Callable[[Process], object] = self.kill
        self.trace: Callable[..., None] = lambda *what: None
        self._heap: list[tuple[float, float, int, Task, int]] = []
        self._numbers = 0
        self._main = getcurrent()
        self._by_greenlet: dict[Any, Task] = {}

    @property
    def current(self) -> Task | None:
        """The task whose turn it is; None outside of all."""
        return self._by_greenlet.get(getcurrent())

    def start(self, process: Process, name: str, body: Callable[[], object], after: float = 0.0) -> Task:
        """Start a task in a process."""

        def run() -> None:
            try:
                body()
            except GreenletExit:
                pass
            except BaseException as error:  # noqa: BLE001 - the simulation tells of it
                if not self.is_over:
                    self.failures.append((f"{process}/{name}", error))
            finally:
                self.tasks.discard(task)
                self._by_greenlet.pop(task.greenlet, None)

        task = Task(process, name, greenlet(run, self._main))
        self._by_greenlet[task.greenlet] = task
        self.tasks.add(task)
        self.wake(task, after)
        return task

    def wake(self, task: Task, seconds: float = 0.0) -> None:
        """Give a task that waits its turn after so many seconds, unless something else wakes it before."""
        self._numbers += 1
        heappush(self._heap, (self.clock + seconds, self.rng.random(), self._numbers, task, task.ticket))

    def wait(self, seconds: float | None) -> None:
        """Let others have their turn until woken, or so many seconds are over."""
        if self.is_over:
            raise Over
        task = self.current
        if task is None:  # outside of all tasks nobody else has a turn
            self.clock += seconds or 0.0
            return
        if seconds is not None:
            self.wake(task, max(seconds, _TURN_SECONDS))
        self._main.switch()
        if self.is_over:
            raise Over

    def run(self, until: Callable[[], bool]) -> bool:
        """Give turns until something is so; False when nobody is left to have one."""
        while not until():
            if not self._heap:
                return False
            when, _, _, task, ticket = heappop(self._heap)
            if ticket != task.ticket or not task.process.is_alive or task not in self.tasks:
                continue
            self.clock = max(self.clock, when)
            process = task.process
            if self.clock < process.frozen_until:
                self.wake(task, process.frozen_until - self.clock)
                continue
            if self._is_struck(process):
                if process.is_alive:
                    self.wake(task, 0.0)
                continue
            self.turns += 1
            if self.turns % _COLLECT_TURNS == 0:
                gc.collect(1)  # never at moments of its own: what it finds may be transactions
            task.ticket += 1
            task.greenlet.switch()
        return True

    def kill(self, process: Process) -> None:
        """End a process at once: none of its tasks has another turn, and nothing of it is cleaned up."""
        self.trace("dies", str(process))
        process.is_alive = False
        for call in process.on_death:
            call()

    def end(self) -> None:
        """End what is left of all tasks."""
        self.is_over = True
        for task in list(self.tasks):
            if task.greenlet:
                task.greenlet.throw(Over)
        self.tasks.clear()
        self._by_greenlet.clear()
        self._heap.clear()

    def _is_struck(self, process: Process) -> bool:
        """Count a turn of a process; whether it dies or stands still instead."""
        if process.dies_in is not None:
            process.dies_in -= 1
            if process.dies_in <= 0:
                process.dies_in = None
                self.on_doom(process)
                return True
        if process.freezes_in is not None:
            process.freezes_in -= 1
            if process.freezes_in <= 0:
                process.freezes_in = None
                self.on_freeze(process)
                return True
        return False


class SimMachine(Machine):
    """What `cq.runtime` is while a simulation runs."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.in_store = False

    def monotonic(self) -> float:
        return 1000.0 + self.hub.clock

    def time_ns(self) -> int:
        """The store's clock jumps; each process's is wrong in its own way."""
        task = self.hub.current
        seconds = self.hub.clock
        if self.in_store:
            seconds += self.hub.jumped
        elif task is not None:
            seconds += task.process.skew
        return START_NS + int(seconds * 1e9)

    def thread_seconds(self) -> float:
        return 0.0  # tasks use none of the simulated time

    def sleep(self, seconds: float) -> None:
        self.hub.wait(seconds)

    def event(self) -> Any:
        return SimEvent(self.hub)

    def latch(self) -> Any:
        return SimEvent(self.hub)

    def condition(self) -> Any:
        return SimCondition(self.hub)

    def is_interruptible(self) -> bool:
        return False

    def start_thread(self, target: Callable[[], object], name: str) -> None:
        task = self.hub.current
        if task is None:
            raise RuntimeError("a thread is started by a task")
        self.hub.start(task.process, name, target)

    def at_exit(self, call: Callable[[], object]) -> Callable[[], object]:
        """Simulated processes die, or close what they have opened."""
        return lambda: None

    def token_bytes(self, count: int) -> bytes:
        return self.hub.rng.randbytes(count)


class _Waiters:
    """The tasks that wait for something."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._waiting: list[Task] = []

    def wait(self, seconds: float | None) -> bool:
        """Wait until woken, for so long at most; whether it was in time."""
        task = self.hub.current
        if task is None:
            if self.hub.is_over:
                raise Over
            if seconds == 0:
                return False
            raise RuntimeError("only tasks can wait")
        self._waiting.append(task)
        self.hub.wait(seconds)
        if task in self._waiting:
            self._waiting.remove(task)
            return False
        return True

    def wake(self, count: int | None = None) -> None:
        """Wake so many of them, or all."""
        woken = self._waiting[:count]
        del self._waiting[:count]
        for task in woken:
            self.hub.wake(task)


class SimEvent:
    """`threading.Event` for tasks."""

    def __init__(self, hub: Hub) -> None:
        self._waiters = _Waiters(hub)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiters.wait(timeout)
        return self._is_set


class SimCondition:
    """`threading.Condition` for tasks; nobody else has a turn while its lock is held."""

    def __init__(self, hub: Hub) -> None:
        self._waiters = _Waiters(hub)
        self._hub = hub

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        return self._waiters.wait(timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._hub.clock + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._hub.clock
            if left is not None and left <= 0:
                break
            self._waiters.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake()
