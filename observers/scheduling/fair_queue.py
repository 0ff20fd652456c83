"""Fair order of ready tasks: queues get time by their weights; within a queue the longest waiting task runs first.

The cost of a queue's steps, see `Runner`, is counted as in start-time fair queueing (Goyal, Vin, Cheng 1996): divided
by the queue's weight, and a queue that was idle starts at the current virtual time. So a flooded queue takes all the
time that the other queues leave, and at most its share while they have work.

Time is shared only when a thread becomes free, and a step that waits for another system, such as the receiver of a
webhook, may hold its thread for long. So such steps never hold more than half of the threads. The place of one that
hangs is given to another thread, see `Runner`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_NEW_SECONDS = 0.01  # assumed cost of a queue's step before the first has been measured


class Lane(NamedTuple):
    """A task's place in the order.

    Attributes:
        queue: the queue's name.
        weight: the queue's weight: queues share time by it.
        kind: of the queue's tasks of one kind, at most `width` run at once.
        width: see `kind`; None: no limit.
        is_outside: whether steps of this kind wait for another system.
        leaves_room: whether other tasks of the queue wait for other systems: this kind leaves one thread for them.
        is_failing: whether the latest call of the other system has failed: the next ones may hang, too.
        calls_application: whether steps of this kind call code of the application, which may hang.
    """

    queue: str
    weight: float = 1.0
    kind: Hashable = None
    width: int | None = None
    is_outside: bool = False
    leaves_room: bool = False
    is_failing: bool = False
    calls_application: bool = False

    @property
    def heap(self) -> int:
        """The number of the heap that its queue is in while its tasks are ready, see `FairQueue`."""
        return self.is_outside + (self.is_outside and self.is_failing)


@dataclass(slots=True, eq=False)
class _KindTasks(Generic[T]):
    """A queue's tasks of one kind; `lane` is that of the latest."""

    lane: Lane
    waiting: list[tuple[float, int, T]] = field(default_factory=list)
    running: int = 0


@dataclass(slots=True)
class _QueueTasks(Generic[T]):
    """The tasks of one queue by kind, and the cost of its steps so far; `number` is that of its present entries."""

    number: int = 0
    weight: float = 1.0
    kinds: dict[Hashable, _KindTasks[T]] = field(default_factory=dict)
    spent: float = 0.0
    typical: float = _NEW_SECONDS

    @property
    def running(self) -> int:
        return sum(kind.running for kind in self.kinds.values())

    @property
    def outside(self) -> int:
        return sum(kind.running for kind in self.kinds.values() if kind.lane.is_outside)

    @property
    def failing(self) -> int:
        return sum(kind.running for kind in self.kinds.values() if kind.lane.is_failing)

    @property
    def is_idle(self) -> bool:
        return not any(kind.waiting or kind.running for kind in self.kinds.values())

    @property
    def claim(self) -> float:
        """Weighted time used so far, running steps included by their typical cost; the lowest claim runs next."""
        return self.spent + self.running * self.typical / self.weight


class FairQueue(Generic[T]):
    """Ready tasks in fair order; not thread-safe.

    A queue's steps may all hang, for example in a reporting database. So one thread stays free for other queues, and of
    the threads for steps that wait for other systems, one for other queues. If a queue has several links, a link leaves
    one of the queue's threads to the others. With one thread, nothing can stay free.

    Args:
        threads: how many tasks run at once.

    Attributes:
        max_outside: how many tasks that wait for other systems run at once.
    """

    def __init__(self, threads: int) -> None:
        self.max_outside = max(1, threads // 2)
        self._most = max(1, threads - 1)  # of one queue
        self._most_failing = max(1, self.max_outside - 1)
        self._lanes: dict[str, _QueueTasks[T]] = {}
        # Heaps of entries (claim, number, queue): of the queues with ready tasks that wait for no other system, with
        # ready tasks that do, and with ready tasks that wait for a failing one. To look at all queues for each step
        # would cost as much as there are queues.
        self._entries: tuple[list[tuple[float, int, str]], ...] = ([], [], [])
        self._numbers = count()
        self._clock = 0.0
        self._outside: list[_KindTasks[T]] = []  # the kinds of running tasks that wait for other systems

    def put(self, task: T, lane: Lane, since: float) -> None:
        """Add a task that has waited since `since`."""
        queue = self._lanes.setdefault(lane.queue, _QueueTasks())
        if queue.is_idle:
            # Unused time is not saved up: otherwise a queue would block all others after an idle period.
            queue.spent = max(queue.spent, self._clock)
        queue.weight = lane.weight
        kind = queue.kinds.setdefault(lane.kind, _KindTasks(lane))
        kind.lane = lane
        heappush(kind.waiting, (since, next(self._numbers), task))
        self._enter(lane.queue)

    def take(self) -> tuple[str, T] | None:
        """The next task and its queue, None if no task may run now; report its end by `done`."""
        while heaps := [heap for heap in self._entries[: self._open_heaps()] if heap]:
            _, number, name = heappop(min(heaps, key=lambda heap: heap[0]))
            queue = self._lanes.get(name)
            if queue is None or queue.number != number:
                continue
            if (kind := self._next(queue)) is None:
                continue  # the end of one of its own steps enters it again
            self._clock = max(self._clock, queue.spent)
            kind.running += 1
            if kind.lane.is_outside:
                self._outside.append(kind)
            task = heappop(kind.waiting)[2]
            self._enter(name)
            return name, task
        return None

    def _open_heaps(self) -> int:
        """The number of the heaps whose tasks may run now."""
        if len(self._outside) >= self.max_outside:
            return 1
        return 2 + (sum(kind.lane.is_failing for kind in self._outside) < self._most_failing)

    def _enter(self, name: str) -> None:
        """Enter a queue under its present claim, in place of its former entries."""
        queue = self._lanes[name]
        queue.number = next(self._numbers)
        for heap in {kind.lane.heap for kind in queue.kinds.values() if kind.waiting}:
            heappush(self._entries[heap], (queue.claim, queue.number, name))

    def _next(self, queue: _QueueTasks[T]) -> _KindTasks[T] | None:
        """The kind of a queue with the longest waiting task that may run."""
        if queue.running >= self._most:
            return None
        own = max(1, self.max_outside - 1)
        heaps = self._open_heaps()
        if queue.outside >= own:
            heaps = 1
        elif queue.failing >= max(1, own - 1):
            heaps = min(heaps, 2)
        ready = [
            kind
            for kind in queue.kinds.values()
            if kind.waiting
            and kind.lane.heap < heaps
            and (kind.lane.width is None or kind.running < kind.lane.width)
            and (kind.running < max(1, own - 1) or not kind.lane.leaves_room)
            and not (kind.running and kind.lane.is_failing)
        ]
        return min(ready, key=lambda kind: kind.waiting[0][:2], default=None)

    def done(self, lane: Lane, seconds: float) -> None:
        """Report that a task of this lane has run, at a cost of `seconds`."""
        queue = self._lanes[lane.queue]
        kind = queue.kinds[lane.kind]
        kind.running -= 1
        if kind.lane.is_outside:
            self._outside.remove(kind)
        kind.lane = lane  # the step may have found out that the other system fails
        queue.spent += seconds / queue.weight
        queue.typical = 0.8 * queue.typical + 0.2 * seconds
        if queue.is_idle and queue.spent <= self._clock:
            del self._lanes[lane.queue]  # a new record would start at the same virtual time
        else:
            self._enter(lane.queue)
