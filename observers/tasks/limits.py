"""The task of comparing what waits in a queue with its limits."""

from __future__ import annotations

from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.queue.limits import CHECK_SECONDS, compare
from cq.store.api import Database


class LimitTask(Task):
    """Marks a queue that is full, for those who add to it."""

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db
        self._reason = ""

    def __str__(self) -> str:
        return f"limits of queue {self.name!r}"

    def run(self) -> float:
        """One look; another one after a while."""
        reason = compare(self._db, self.name)
        if reason and not self._reason:
            emit("queue_full", queue=self.name, reason=reason)
        elif self._reason and not reason:
            emit("queue_has_room", queue=self.name)
        self._reason = reason
        return CHECK_SECONDS
