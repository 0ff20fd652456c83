"""The task that expires updates which have left their queue's window."""

from __future__ import annotations

from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import Database
from cq.windows.expiry import expire


class WindowTask(Task):
    """Expires due rows, a limited number in each step. Without due rows it reads one row per slice."""

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db

    def __str__(self) -> str:
        return f"window of queue {self.name!r}"

    def run(self) -> float:
        """Expire due rows; returns the seconds until the next row is due (0.0: now), or `DONE` without a window."""
        expired = expire(self._db, self.name)
        if expired is None:
            return DONE
        if expired.rows:
            emit("window_left", queue=self.name, rows=expired.rows)
        return expired.seconds
