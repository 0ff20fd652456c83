"""The task of comparing what waits in a queue with its limits."""

from __future__ import annotations

import logging

from cq.observers.jobs import Task
from cq.pressure import LOOK_SECONDS, compare
from cq.store.api import Database

log = logging.getLogger("cq.worker")


class PressureTask(Task):
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
            log.warning("queue %r is full: %s", self.name, reason)
        elif self._reason and not reason:
            log.info("queue %r is full no more", self.name)
        self._reason = reason
        return LOOK_SECONDS
