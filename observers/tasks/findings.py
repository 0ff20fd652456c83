"""The task that counts the findings about the store for metrics: one worker of the store, rarely."""

from __future__ import annotations

from typing import Final

from cq.observers.monitoring.findings import Level, find_remarks
from cq.observers.monitoring.store_overview import overview
from cq.observers.tasks.timed import TimedTask
from cq.observers.telemetry.bus import emit
from cq.store.api import Database

FINDINGS_SECONDS: Final = 60.0
"""The least pause between two looks."""
_SECONDS_FOR_QUEUE: Final = 0.1
"""The pause grows with the number of queues, because a look reads each of them."""


class FindingsTask(TimedTask):
    """Counts the problems and warnings that `cq status` shows."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, "")

    def __str__(self) -> str:
        return "findings about the store"

    def run(self) -> float:
        """Look at the store; returns the seconds until the next look."""
        seen = overview(self._db)
        levels = [each.level for each in find_remarks(seen)]
        emit("store_checked", problems=levels.count(Level.PROBLEM), warnings=levels.count(Level.WARNING))
        return max(FINDINGS_SECONDS, _SECONDS_FOR_QUEUE * len(seen.queues))

    def end(self) -> None:
        """Stop counting: another worker has acquired the task."""
        emit("store_handed_over")
