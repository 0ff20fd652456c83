"""The task that compares a queue's backlog with its limits."""

from __future__ import annotations

from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.queue.limits import CHECK_SECONDS, compare
from cq.store.api import Database


class LimitTask(Task):
    """Marks the queue as full while its backlog exceeds a limit; adds to it then fail."""

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db
        self._reason = ""

    def __str__(self) -> str:
        return f"limits of queue {self.name!r}"

    def run(self) -> float:
        """Compare, and report changes; returns the seconds until the next comparison."""
        reason = compare(self._db, self.name)
        # Events for changes only: a full queue is reported once, not at every comparison.
        if reason and not self._reason:
            emit("queue_full", queue=self.name, reason=reason)
        elif self._reason and not reason:
            emit("queue_has_room", queue=self.name)
        self._reason = reason
        return CHECK_SECONDS
