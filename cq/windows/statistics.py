"""What a window has refused, and whether taking out of it gets on."""

from __future__ import annotations

from dataclasses import dataclass

from cq.config.window import milliseconds
from cq.keys.window import WindowKeys
from cq.store.api import TransactionRead


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """What a window has refused since its queue was made, and whether taking out gets on.

    Attributes:
        late: updates of a time that had left the window already when they were added; none of them counts. One
            that is added again after its commit got lost is counted again here.
        future: updates of a time that was more than a slice ahead; none of them counts.
        overdue_seconds: for how long the first update that should be taken out has been due; 0 when none is.
    """

    late: int
    future: int
    overdue_seconds: float


def read_statistics(snapshot: TransactionRead, name: str) -> WindowStatistics:
    """The statistics of a queue with a window: three reads."""
    window = WindowKeys(name)
    late, future = snapshot.get(window.late), snapshot.get(window.future)
    first = snapshot.get_range(*window.rows(), limit=1)
    overdue = [max(0, milliseconds(None) - window.due_of(row.key)) for row in first]
    return WindowStatistics(_counted(late.value), _counted(future.value), sum(overdue) / 1000)


def _counted(stored: bytes | None) -> int:
    return int.from_bytes(stored or b"", "little")
