"""Counts of a worker's completed work since its start, in total and by queue."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, sub
from threading import Lock
from typing import NamedTuple

from cq.passes.effects import PassResult


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of work.

    Attributes:
        passes: number of committed passes.
        rows: number of rows that they cleared.
        reported: number of keys whose value they wrote or found unchanged.
        folded: number of keys whose updates they combined before the report.
        aside: number of keys that they set aside.
        updates: number of updates that they combined.
        conflicts: number of their transactions that conflicted.
    """

    passes: int = 0
    rows: int = 0
    reported: int = 0
    folded: int = 0
    aside: int = 0
    updates: int = 0
    conflicts: int = 0

    def as_dict(self) -> dict[str, int]:
        """{name of a count: number}."""
        return {each.name: getattr(self, each.name) for each in fields(Counts)}

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, self.as_dict().values(), other.as_dict().values()))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(sub, self.as_dict().values(), other.as_dict().values()))


class DecisionCounts(NamedTuple):
    """Counts of the decisions on a queue.

    Attributes:
        decided, refused: numbers of requests that are decided, and of these that are refused.
        passes: number of passes with decisions.
        microseconds: the waits of the first request of each of these passes for its answer, together.
    """

    decided: int
    refused: int
    passes: int
    microseconds: int


class WorkerCounts:
    """A worker's counts, in total and by queue; thread-safe.

    Attributes:
        total: of all queues.
        queues: {queue: its counts}.
        decisions: {queue with a decider: its decisions}.
    """

    def __init__(self) -> None:
        self.total = Counts()
        self.queues: dict[str, Counts] = {}
        self.decisions: dict[str, DecisionCounts] = {}
        self._oldest: dict[str, float] = {}
        self._counting = Lock()

    def count(self, queue: str, result: PassResult, seconds: float = 0.0) -> None:
        """Add the result of one pass over a queue, which took some seconds."""
        keys = result.reported, result.folded, len(result.aside | result.failed)
        done = Counts(1, result.rows, *keys, result.updates, result.conflicts)
        with self._counting:
            self.total += done
            self.queues[queue] = self.queues.get(queue, Counts()) + done
            if result.decided:
                waited = int((result.waited + seconds) * 1e6)
                more = (result.decided, result.refused, 1, waited)
                before = self.decisions.get(queue, (0, 0, 0, 0))
                self.decisions[queue] = DecisionCounts(*map(add, before, more))
            if result.age > self._oldest.get(queue, 0.0):
                self._oldest[queue] = result.age

    def take_oldest(self) -> dict[str, float]:
        """{queue: highest `PassResult.age` since the previous call}, without queues whose passes all had age 0."""
        with self._counting:
            taken, self._oldest = self._oldest, {}
        return taken
