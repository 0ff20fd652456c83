"""What a worker has done since it was made, in all and by queue."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from threading import Lock

from cq.passes.pass_result import PassResult

_counting = Lock()


@dataclass(slots=True)
class Counts:
    """Passes committed, rows taken, keys reported, folded and set aside, updates combined, conflicts of passes."""

    passes: int = 0
    rows: int = 0
    reported: int = 0
    folded: int = 0
    aside: int = 0
    updates: int = 0
    conflicts: int = 0

    def as_dict(self) -> dict[str, int]:
        """{what: how many}."""
        return {each.name: getattr(self, each.name) for each in fields(Counts)}

    def copy(self) -> Counts:
        """These numbers, which change no more."""
        return Counts(**self.as_dict())

    def add(self, result: PassResult) -> None:
        """Add what one pass has done."""
        self.passes += 1
        self.rows += result.rows
        self.reported += result.reported
        self.folded += result.folded
        self.aside += len(result.aside)
        self.updates += result.updates
        self.conflicts += result.conflicts


@dataclass(slots=True)
class WorkerCounts(Counts):
    """What a worker has done: in all, and by queue; thread-safe."""

    queues: dict[str, Counts] = field(default_factory=dict)

    def count(self, queue: str, result: PassResult) -> None:
        """Add what one pass over a queue has done."""
        with _counting:
            self.add(result)
            self.queues.setdefault(queue, Counts()).add(result)
