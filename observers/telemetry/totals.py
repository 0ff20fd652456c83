"""Counts of a worker's completed work since its start, in total and by queue."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from threading import Lock

from cq.passes.pass_result import PassResult

_counting = Lock()


@dataclass(slots=True)
class Counts:
    """Committed passes, rows taken, keys reported, folded and set aside, combined updates, and conflicts of passes."""

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

    def copy(self) -> Counts:
        """A copy, which does not change any more."""
        return Counts(**self.as_dict())

    def add(self, result: PassResult) -> None:
        """Add the result of one pass."""
        self.passes += 1
        self.rows += result.rows
        self.reported += result.reported
        self.folded += result.folded
        self.aside += len(result.aside)
        self.updates += result.updates
        self.conflicts += result.conflicts


@dataclass(slots=True)
class WorkerCounts(Counts):
    """A worker's counts, in total and by queue; thread-safe.

    Attributes:
        queues: {queue: its counts}.
    """

    queues: dict[str, Counts] = field(default_factory=dict)
    _oldest: dict[str, float] = field(default_factory=dict)

    def count(self, queue: str, result: PassResult) -> None:
        """Add the result of one pass over a queue."""
        with _counting:
            self.add(result)
            self.queues.setdefault(queue, Counts()).add(result)
            if result.age > self._oldest.get(queue, 0.0):
                self._oldest[queue] = result.age

    def take_oldest(self) -> dict[str, float]:
        """{queue: highest `PassResult.age` since the previous call}, without queues whose passes all had age 0."""
        with _counting:
            taken, self._oldest = self._oldest, {}
        return taken
