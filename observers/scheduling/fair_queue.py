"""Fair order of ready tasks: queues get time by their weights; within a queue the longest waiting task runs first.

The cost of a queue's steps, see `Runner`, is counted as in start-time fair queueing (Goyal, Vin, Cheng 1996): divided
by the queue's weight, and a queue that was idle starts at the current virtual time. So a flooded queue takes all the
time that the other queues leave, and at most its share while they have work.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_NEW_SECONDS = 0.01  # assumed cost of a queue's step before the first has been measured


@dataclass(slots=True)
class _TaskKind(Generic[T]):
    """A queue's tasks of one kind; at most `width` of them run at once (None: no limit)."""

    width: int | None = None
    waiting: list[tuple[float, int, T]] = field(default_factory=list)
    running: int = 0


@dataclass(slots=True)
class _QueueTasks(Generic[T]):
    """The tasks of one queue by kind, and the cost of its steps so far."""

    weight: float = 1.0
    kinds: dict[Hashable, _TaskKind[T]] = field(default_factory=dict)
    spent: float = 0.0
    typical: float = _NEW_SECONDS

    @property
    def running(self) -> int:
        return sum(kind.running for kind in self.kinds.values())

    @property
    def is_idle(self) -> bool:
        return not any(kind.waiting or kind.running for kind in self.kinds.values())

    @property
    def claim(self) -> float:
        """Weighted time used so far, running steps included by their typical cost; the lowest claim runs next."""
        return self.spent + self.running * self.typical / self.weight

    def next(self, most: int) -> _TaskKind[T] | None:
        """The kind with the longest waiting task that may run, if fewer than `most` tasks of the queue run."""
        if self.running >= most:
            return None
        ready = [
            kind
            for kind in self.kinds.values()
            if kind.waiting and (kind.width is None or kind.running < kind.width)
        ]
        return min(ready, key=lambda kind: kind.waiting[0][:2], default=None)


class FairQueue(Generic[T]):
    """Ready tasks in fair order; not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[str, _QueueTasks[T]] = {}
        self._numbers = count()
        self._clock = 0.0

    def put(
        self,
        task: T,
        lane: str,
        weight: float,
        since: float,
        kind: Hashable = None,
        width: int | None = None,
    ) -> None:
        """Add a task of the queue `lane` that has waited since `since`; queues share time by weight.

        At most `width` of the queue's tasks of this kind run at once; None: no limit.
        """
        queue = self._lanes.setdefault(lane, _QueueTasks())
        if queue.is_idle:
            # Unused time is not saved up: otherwise a queue would block all others after an idle period.
            queue.spent = max(queue.spent, self._clock)
        queue.weight = weight
        of_kind = queue.kinds.setdefault(kind, _TaskKind())
        of_kind.width = width
        heappush(of_kind.waiting, (since, next(self._numbers), task))

    def take(self, most: int) -> tuple[str, T] | None:
        """The next task and its lane, None if no task may run now; report its end by `done`.

        At most `most` tasks of one queue run at once, so that a thread stays free for the other queues.
        """
        ready = ((name, lane.next(most)) for name, lane in self._lanes.items())
        name, kind = min(
            ((name, kind) for name, kind in ready if kind is not None),
            key=lambda found: self._lanes[found[0]].claim,
            default=("", None),
        )
        if kind is None:
            return None
        self._clock = max(self._clock, self._lanes[name].spent)
        kind.running += 1
        return name, heappop(kind.waiting)[2]

    def done(self, lane: str, seconds: float, kind: Hashable = None) -> None:
        """Report that a task of this lane and kind has run, at a cost of `seconds`."""
        queue = self._lanes[lane]
        queue.kinds[kind].running -= 1
        queue.spent += seconds / queue.weight
        queue.typical = 0.8 * queue.typical + 0.2 * seconds
        if queue.is_idle and queue.spent <= self._clock:
            del self._lanes[lane]  # a new entry would start at the same virtual time
