"""The task of measuring what waits in a queue, for metrics: by one worker for each queue, seldom, and in few requests.

A queue in which nothing waits costs three requests: a read version, and two ranges without rows. The more such queues
a worker measures, the more seldom it does, so that it costs the store next to nothing while it idles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cq.keys import QueueKeys, version_of
from cq.keys.export import ExportKeys, versionstamp_of
from cq.observers.export.queue import BUCKETS
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.queue.rows import oldest_by_bucket
from cq.store.api import Database, Transaction
from cq.store.range_size import count_rows
from cq.store.transact import transact
from cq.store.version_clock import clock_of

MEASURE_SECONDS: Final = 15.0
"""How often a queue is measured in which something waits."""
IDLE_SECONDS: Final = 30.0
"""How often one of those is measured in which nothing waits."""
SELDOM_SECONDS: Final = 120.0
"""How often each queue is measured at least, whatever their number."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What waits in a queue.

    Attributes:
        buckets, bytes: with work, and queued in them (about).
        oldest: age of the oldest update in seconds, about; 0.0 when nothing waits.
        export_bytes, export_lag: the same of the entries to be exported.
    """

    buckets: int
    bytes: int
    oldest: float
    export_bytes: int
    export_lag: float

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not (self.buckets or self.export_bytes)


class IdleQueues:
    """The queues that a worker measures and in which nothing waits."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    def note(self, name: str, is_idle: bool) -> float:
        """Note how a queue is; returns after how many seconds it is to be measured again."""
        self._names = self._names | {name} if is_idle else self._names - {name}
        return min(SELDOM_SECONDS, IDLE_SECONDS * len(self._names)) if is_idle else MEASURE_SECONDS

    def forget(self, name: str) -> None:
        """The queue is measured no more."""
        self._names -= {name}


class MeasureTask(Task):
    """Measures one queue now and then.

    Args:
        db: a database of either store.
        name: of the queue.
        idle: shared by all such tasks of a worker.
    """

    def __init__(self, db: Database, name: str, idle: IdleQueues) -> None:
        self.name = name
        self._db, self._idle = db, idle

    def __str__(self) -> str:
        return f"measures of queue {self.name!r}"

    def run(self) -> float:
        """Measure the queue; returns after how many seconds to do so again."""
        found = transact(self._db, lambda tr: measure(tr, self.name))
        emit(
            "queue_measured",
            queue=self.name,
            waiting_buckets=found.buckets,
            waiting_bytes=found.bytes,
            oldest=found.oldest,
            export_bytes=found.export_bytes,
            export_lag=found.export_lag,
        )
        return self._idle.note(self.name, found.is_idle)

    def end(self) -> None:
        """Another worker measures the queue now."""
        self._idle.forget(self.name)
        emit("queue_handed_over", queue=self.name)


def measure(tr: Transaction, name: str) -> Measurement:
    """What waits in a queue.

    Ages are told by the transaction's read version. In an embedded store that is the version of the latest commit, a
    few seconds old at most, as workers beat.
    """
    snapshot, queue, exports = tr.snapshot, QueueKeys(name), ExportKeys(name)
    version = tr.get_read_version()
    first_exported = snapshot.get_range(*exports.all_rows(), limit=1)
    waiting = oldest_by_bucket(snapshot, queue)
    now, clock = version.wait(), clock_of(tr.db)
    clock.observe(now)
    export_bytes, export_lag = 0, 0.0
    if first_exported.to_list():
        rows = [snapshot.get_range(*exports.rows(bucket), limit=1) for bucket in range(BUCKETS)]
        versions = [
            version_of(versionstamp_of(exports.sequence_of_row(row.key))) for found in rows for row in found
        ]
        export_bytes = count_rows(snapshot, *exports.all_rows()).bytes
        export_lag = clock.age(min(versions, default=now), now)
    size = count_rows(snapshot, *queue.all_rows()).bytes if waiting else 0
    oldest = clock.age(min((each for each in waiting.values() if each is not None), default=now), now)
    return Measurement(len(waiting), size, oldest, export_bytes, export_lag)
