"""The task of taking out of a queue what has left its window, when that is due."""

from __future__ import annotations

from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import Database
from cq.windows.expiry import expire


class WindowTask(Task):
    """Takes out what is due, a bounded part in each step; while nothing is, it reads one row for each slice."""

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db

    def __str__(self) -> str:
        return f"window of queue {self.name!r}"

    def run(self) -> float:
        """One part; then the next at once, or when the first row is due."""
        expired = expire(self._db, self.name)
        if expired is None:
            return DONE
        if expired.rows:
            emit("window_left", queue=self.name, rows=expired.rows)
        return expired.seconds
