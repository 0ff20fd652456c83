"""The task that finishes a rebucketing or a backfill once all buckets of a queue have done their part."""

from __future__ import annotations

from typing import Final

from cq.admin.backfill import is_settled, publish_generations
from cq.admin.rebucket import finish_rebucket
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.store.api import Database
from cq.store.transact import transact

CHECK_SECONDS: Final = 0.1


class FinishTask(Task):
    """Checks regularly whether the queue's rebucketing or backfill is complete, and then finishes it.

    Passes do that, too, but a worker may crash after its last pass and before it has finished the change.
    """

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db

    def __str__(self) -> str:
        return f"changes of queue {self.name!r}"

    def run(self) -> float:
        """Finish completed changes; returns the seconds until the next check, or `DONE` if no change is in progress."""
        # Both read the state of all buckets, and do nothing unless every bucket is done: any worker may call them.
        finish_rebucket(self._db, self.name)
        publish_generations(self._db, self.name)
        return DONE if transact(self._db, lambda tr: is_settled(tr.snapshot, self.name)) else CHECK_SECONDS
