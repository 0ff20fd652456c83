"""What a worker keeps of queues and buckets while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from cq.app import QueueCode
from cq.bucket import Bucket, FailureShare
from cq.combining import Limits, PassResult
from cq.errors import CorruptData
from cq.keys import QueueKeys
from cq.observers.watchslot import WatchSlot
from cq.store.api import Database


@dataclass(slots=True)
class Totals:
    """What a worker has done since it was made: passes committed, rows taken, keys reported, folded, set aside."""

    passes: int = 0
    rows: int = 0
    reported: int = 0
    folded: int = 0
    aside: int = 0

    def count(self, result: PassResult) -> None:
        """Add what one pass has done."""
        with _counting:
            self.passes += 1
            self.rows += result.rows
            self.reported += result.reported
            self.folded += result.folded
            self.aside += len(result.aside)


_counting = Lock()


class Task:
    """One bucket: the passes over it, and the watch that it waits for."""

    def __init__(self, queue: QueueTasks, bucket: Bucket, notification: bytes) -> None:
        self.queue = queue
        self.bucket = bucket
        self.notification = notification
        self.retired = False
        self.failures = 0
        self.watch = WatchSlot()

    def __str__(self) -> str:
        return f"bucket {self.bucket.bucket} of queue {self.queue.code.config.name!r}"

    def shown(self, encoded: bytes) -> str:
        """A key as the log shows it."""
        try:
            return repr(self.queue.code.config.key.decode(encoded)) if encoded else "a row"
        except CorruptData:
            return repr(encoded)

    def retire(self) -> None:
        """Run no more passes."""
        self.retired = True
        self.watch.cancel()


class QueueTasks:
    """One queue: its code, a task for each bucket, and the share of its keys that fail."""

    def __init__(self, db: Database, code: QueueCode, limits: Limits | None) -> None:
        self.code = code
        self.failures = FailureShare()
        queue_keys, generation = QueueKeys(code.config.name), code.config.generation
        self.tasks = [
            Task(
                self,
                Bucket(db, code, number, failures=self.failures, limits=limits),
                queue_keys.notification(generation, number),
            )
            for number in range(code.config.buckets)
        ]

    def retire(self) -> None:
        """Run no more passes over any bucket."""
        for task in self.tasks:
            task.retire()
