"""The tasks of a queue that run by time, without a notification."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from cq.admin.backfill import is_settled, publish_generations
from cq.admin.conversion import finish_conversion
from cq.admin.rebucketing import finish_rebucket
from cq.config.queue import QueueConfig
from cq.expiry.due import notify_due
from cq.expiry.former_values import index_page
from cq.observers.scheduling.members import EXPIRY, SETTLE, TRIM, TaskId
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task, WorkPart
from cq.observers.telemetry.bus import emit
from cq.queue.limits import CHECK_SECONDS, compare
from cq.queue.operation_ids import Trim
from cq.store.api import Database
from cq.store.transact import transact

SETTLE_SECONDS: Final = 0.1
"""The pause between two checks of a rebucketing or backfill in progress."""
TRIM_DELAY_SECONDS: Final = 60.0
"""How long after its start a worker trims operation ids first."""
TRIM_SECONDS: Final = 3600.0
"""The pause between two scans of all operation ids."""


class TimedTask(Task):
    """A task of one queue that runs by time."""

    subject: str

    def __init__(self, db: Database, name: str) -> None:
        self.name = name
        self._db = db

    def __str__(self) -> str:
        return f"{self.subject} of queue {self.name!r}"


class ExpiryTask(TimedTask):
    """Notifies the buckets with due keys, and gives times to values that are older than the queue's expiry.

    Without due keys, a step reads two rows, at least once a minute and once in a period.
    """

    subject = "expiry"
    _position = b""

    def run(self) -> float:
        """Run one step; returns the seconds until the next one (0.0: at once), or `DONE` without an expiry."""
        notified = notify_due(self._db, self.name, self._position)
        if notified is None:
            return DONE
        self._position = notified.position
        seconds = index_page(self._db, self.name)
        return notified.seconds if seconds is None else min(seconds, notified.seconds)


class FinishTask(TimedTask):
    """Checks regularly whether a rebucketing, a change of the combiner or a backfill is complete, and then finishes it.

    Passes do that, too, but a worker may crash after its last pass and before it has finished the change.
    """

    subject = "changes"

    def run(self) -> float:
        """Finish completed changes; returns the seconds until the next check, or `DONE` if no change is in progress."""
        # Both read the state of all buckets, and do nothing unless every bucket is done: any worker may call them.
        finish_rebucket(self._db, self.name)
        finish_conversion(self._db, self.name)
        publish_generations(self._db, self.name)
        return DONE if transact(self._db, lambda tr: is_settled(tr.snapshot, self.name)) else SETTLE_SECONDS


class LimitTask(TimedTask):
    """Marks the queue as full while its backlog exceeds a limit; adds to it then fail."""

    subject = "limits"
    _reason = ""

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

    def end(self) -> None:
        """Stop checking: another worker has acquired the task, or the queue has no limits any more."""
        self._reason = ""
        emit("limit_handed_over", queue=self.name)


class TrimTask(TimedTask):
    """Scans the queue's operation ids and deletes expired ones, a page in each step."""

    subject = "operation ids"
    delay = TRIM_DELAY_SECONDS
    _trim: Trim | None = None

    def run(self) -> float:
        """Trim one page; returns 0.0 if there are more pages, else the seconds until the next scan."""
        if self._trim is None:
            self._trim = Trim(self._db, self.name)
        if self._trim.step():
            return 0.0
        self._trim = None
        return TRIM_SECONDS


def timed_parts(db: Database, config: QueueConfig, *, is_settled: bool) -> Iterator[WorkPart]:
    """The work of a queue that runs by time; `is_settled`: no observer is in backfill."""
    tasks: dict[str, type[TimedTask]] = {TRIM: TrimTask}
    if config.expiry is not None:
        tasks[EXPIRY] = ExpiryTask
    if config.former is not None or not is_settled:
        tasks[SETTLE] = FinishTask
    for kind, task in tasks.items():
        yield WorkPart.single(TaskId(kind, config.name, 0), config, partial(task, db, config.name))
