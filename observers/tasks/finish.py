"""The task of finishing what all buckets of a queue have done: a change of shape, and telling observers of values."""

from __future__ import annotations

from typing import Final

from cq.admin.backfill import is_settled, publish_generations
from cq.admin.rebucket import finish_rebucket
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.store.api import Database
from cq.store.transact import transact

LOOK_SECONDS: Final = 0.1


class FinishTask(Task):
    """Looks whether it is finished, while there is something to finish.

    The passes cannot see to it alone: a worker may die between its last pass and that.
    """

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db

    def __str__(self) -> str:
        return f"changes of queue {self.name!r}"

    def run(self) -> float:
        """One look; another one after a while, unless all is done."""
        finish_rebucket(self._db, self.name)
        publish_generations(self._db, self.name)
        return DONE if transact(self._db, lambda tr: is_settled(tr.snapshot, self.name)) else LOOK_SECONDS
