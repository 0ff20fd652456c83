"""The task that deletes expired operation ids, a page in each step."""

from __future__ import annotations

from typing import Final

from cq.observers.scheduling.task import Task
from cq.queue.operation_ids import Trim
from cq.store.api import Database

FIRST_SECONDS: Final = 60.0
"""How long after its start a worker runs the task first."""
EVERY_SECONDS: Final = 3600.0
"""The pause between two scans of all operation ids."""


class TrimTask(Task):
    """Scans a queue's operation ids and deletes expired ones, a page in each step."""

    delay = FIRST_SECONDS

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db
        self._trim: Trim | None = None

    def __str__(self) -> str:
        return f"operation ids of queue {self.name!r}"

    def run(self) -> float:
        """Trim one page; returns 0.0 if there are more pages, else the seconds until the next scan."""
        if self._trim is None:
            self._trim = Trim(self._db, self.name)
        if self._trim.step():
            return 0.0
        self._trim = None
        return EVERY_SECONDS
