"""Which task is next: queues get time by their weights, and within a queue whoever has waited longest comes first.

The cost of a queue's steps, see `Runner`, is counted as in start-time fair queueing (Goyal, Vin, Cheng 1996): divided
by the queue's weight, and a queue that had nothing to do begins where the others are. So a flooded queue takes all the
time that nobody else wants, and no more than its share of the rest.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_NEW_SECONDS = 0.01  # what a step of a queue is taken to cost before any was seen


@dataclass(slots=True)
class _TaskKind(Generic[T]):
    """Tasks of a queue of which so many may run at once; None for any number."""

    width: int | None = None
    waiting: list[tuple[float, int, T]] = field(default_factory=list)
    running: int = 0


@dataclass(slots=True)
class _QueueTasks(Generic[T]):
    """The tasks of one queue, by their kinds, and what its steps have cost."""

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
        """Time given so far, with what runs now; the least comes next."""
        return self.spent + self.running * self.typical / self.weight

    def next(self, most: int) -> _TaskKind[T] | None:
        """The kind whose turn it is, when no more than `most` tasks may run at once."""
        if self.running >= most:
            return None
        ready = [
            kind
            for kind in self.kinds.values()
            if kind.waiting and (kind.width is None or kind.running < kind.width)
        ]
        return min(ready, key=lambda kind: kind.waiting[0][:2], default=None)


class FairQueue(Generic[T]):
    """Tasks that wait to be run; not thread-safe."""

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
        """Have a task of a queue wait, as one that has waited since then; queues share time by weight.

        Of the queue's tasks of its kind, no more than `width` run at once; None for any number.
        """
        there = self._lanes.setdefault(lane, _QueueTasks())
        if there.is_idle:
            there.spent = max(there.spent, self._clock)
        there.weight = weight
        of_kind = there.kinds.setdefault(kind, _TaskKind())
        of_kind.width = width
        heappush(of_kind.waiting, (since, next(self._numbers), task))

    def take(self, most: int) -> tuple[str, T] | None:
        """The next task and its lane, None when nothing waits; `done` says that it has run.

        No more than `most` tasks of one queue run at once: what another queue has to do must not wait for one of them.
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
        """A task of the lane, of that kind, has run for so long."""
        there = self._lanes[lane]
        there.kinds[kind].running -= 1
        there.spent += seconds / there.weight
        there.typical = 0.8 * there.typical + 0.2 * seconds
        if there.is_idle and there.spent <= self._clock:
            del self._lanes[lane]  # it would begin where the others are
