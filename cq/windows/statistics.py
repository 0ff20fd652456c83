"""Statistics of a window: refused updates, and how far its expiry is late."""

from __future__ import annotations

from dataclasses import dataclass

from cq.config.window import milliseconds
from cq.keys.window import WindowKeys
from cq.store.api import TransactionRead


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """Updates that a window refused since its queue was created, and how far its expiry is late.

    Attributes:
        late: updates whose time had already left the window when they were added. They do not count in totals. A retry
            after an unknown commit result may count an update here twice.
        future: updates whose time was more than a slice ahead. They do not count in totals.
        overdue_seconds: how long the first row has been due; 0 if no row is due.
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
