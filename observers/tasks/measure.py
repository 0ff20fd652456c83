"""The task that measures a queue's backlog for metrics: one worker for each queue, rarely, with few requests.

Measuring an idle queue takes four requests: a read version, two ranges without rows, and a key without a value. The
more idle queues a worker has, the less often it measures each of them, so that an idle worker causes almost no load.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cq.keys import QueueKeys, after
from cq.keys.export import ExportKeys
from cq.keys.outbox import OutboxKeys
from cq.observers.export.queue import oldest_versions
from cq.observers.export.state import ExportStop, read_view
from cq.observers.tasks.timed import TimedTask
from cq.observers.telemetry.bus import emit
from cq.queue.rows import oldest_by_bucket
from cq.store.api import Database, Transaction
from cq.store.sizes import count_rows
from cq.store.transact import transact
from cq.store.version_clock import clock_of

MEASURE_SECONDS: Final = 15.0
"""The period for a queue with a backlog, or with a stopped export or outbox."""
IDLE_SECONDS: Final = 30.0
"""The period for an idle queue, if it is the worker's only one; more idle queues multiply it by their number."""
SELDOM_SECONDS: Final = 120.0
"""The longest period, whatever the number of idle queues."""


class Measurement(NamedTuple):
    """The backlog of a queue, by the fields of the event `queue_measured`."""

    waiting_buckets: int
    waiting_bytes: int
    oldest: float
    export_bytes: int
    export_lag: float
    stopped: int

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no updates, no entries to export, and no stopped export or outbox."""
        return not (self.waiting_buckets or self.export_bytes or self.stopped)


class MeasureTask(TimedTask):
    """Measures one queue regularly.

    Args:
        db: a database of either store.
        name: the queue's name.
        idle: the names of the worker's idle queues, shared by all its tasks of this kind.
    """

    subject = "measures"

    def __init__(self, db: Database, name: str, idle: set[str]) -> None:
        super().__init__(db, name)
        self._idle = idle

    def run(self) -> float:
        """Measure the queue; returns the seconds until the next measurement."""
        found = transact(self._db, lambda tr: measure(tr, self.name))
        emit(
            "queue_measured",
            queue=self.name,
            waiting_buckets=found.waiting_buckets,
            waiting_bytes=found.waiting_bytes,
            oldest=found.oldest,
            export_bytes=found.export_bytes,
            export_lag=found.export_lag,
            stopped=found.stopped,
        )
        if not found.is_idle:
            self._idle.discard(self.name)
            return MEASURE_SECONDS
        self._idle.add(self.name)
        return min(SELDOM_SECONDS, IDLE_SECONDS * len(self._idle))

    def end(self) -> None:
        """Stop measuring: another worker has acquired the task."""
        self._idle.discard(self.name)
        emit("queue_handed_over", queue=self.name)


def measure(tr: Transaction, name: str) -> Measurement:
    """Measure the backlog of a queue.

    Ages are relative to the transaction's read version. In an embedded store this is the version of the latest commit;
    workers commit heartbeats, so it is at most a few seconds old.
    """
    snapshot, queue, exports = tr.snapshot, QueueKeys(name), ExportKeys(name)
    # The four requests of an idle queue start before the first wait.
    version = tr.get_read_version()
    # One range for entries and the reason of a stop: its key is the next one after the last entry.
    first_exported = snapshot.get_range(exports.all_rows()[0], after(exports.stopped), limit=1)
    outbox = snapshot.get(OutboxKeys(name).stopped)
    waiting = oldest_by_bucket(snapshot, queue)
    now, clock = version.wait(), clock_of(tr.db)
    clock.observe(now)
    export_bytes, export_lag = 0, 0.0
    is_stopped = ExportStop.from_bytes(outbox.value).epoch == 0
    # The further requests are made for a backlog or a stop only: an idle queue must stay at four.
    if first_exported.to_list():
        is_stopped |= read_view(snapshot, exports, ())().stopped is not None
        versions = oldest_versions(snapshot, exports)
        export_bytes = count_rows(snapshot, *exports.all_rows()).bytes
        export_lag = clock.age(min(versions, default=now), now)
    size = count_rows(snapshot, *queue.all_rows()).bytes if waiting else 0
    oldest = clock.age(min((each for each in waiting.values() if each is not None), default=now), now)
    return Measurement(len(waiting), size, oldest, export_bytes, export_lag, int(is_stopped))
