"""Which task is next: queues get time by their weights, and within a queue whoever has waited longest comes first.

The time that a queue has been given is counted as in start-time fair queueing (Goyal, Vin, Cheng 1996): divided by
the queue's weight, and a queue that had nothing to do begins where the others are. So a flooded queue takes all the
time that nobody else wants, and no more than its share of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_NEW_SECONDS = 0.01  # what a step of a queue is taken to cost before any was seen


@dataclass(slots=True)
class _Lane(Generic[T]):
    """The tasks of one queue that wait, and what its steps have cost."""

    weight: float = 1.0
    waiting: list[tuple[float, int, T]] = field(default_factory=list)
    running: int = 0
    spent: float = 0.0
    typical: float = _NEW_SECONDS

    @property
    def claim(self) -> float:
        """Time given so far, with what runs now; the least comes next."""
        return self.spent + self.running * self.typical / self.weight


class Fair(Generic[T]):
    """Tasks that wait to be run; not thread-safe."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[T]] = {}
        self._numbers = count()
        self._clock = 0.0

    def put(self, task: T, lane: str, weight: float, since: float) -> None:
        """Have a task of a queue wait, as one that has waited since then; queues share time by weight."""
        there = self._lanes.setdefault(lane, _Lane())
        if not there.waiting and not there.running:
            there.spent = max(there.spent, self._clock)
        there.weight = weight
        heappush(there.waiting, (since, next(self._numbers), task))

    def take(self, most: int) -> tuple[str, T] | None:
        """The next task and its lane, None when nothing waits; `done` says that it has run.

        No more than `most` tasks of one queue run at once: what another queue has to do must not wait for one of them.
        """
        name = min(
            (name for name, lane in self._lanes.items() if lane.waiting and lane.running < most),
            key=lambda name: self._lanes[name].claim,
            default=None,
        )
        if name is None:
            return None
        lane = self._lanes[name]
        self._clock = max(self._clock, lane.spent)
        lane.running += 1
        return name, heappop(lane.waiting)[2]

    def done(self, lane: str, seconds: float) -> None:
        """A task of the lane has run for so long."""
        there = self._lanes[lane]
        there.running -= 1
        there.spent += seconds / there.weight
        there.typical = 0.8 * there.typical + 0.2 * seconds
        if not there.waiting and not there.running and there.spent <= self._clock:
            del self._lanes[lane]  # it would begin where the others are
