"""The tasks that measure for metrics: the backlog of each queue, and the findings about the store.

One worker measures each queue, rarely, with few requests.

Measuring an idle queue takes four requests: a read version, two ranges without rows, and a key without a value. The
more idle queues a worker has, the less often it measures each of them, so that an idle worker causes almost no load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from cq.config.queue import read_config
from cq.errors import CqError
from cq.keys import QueueKeys, after
from cq.keys.link import APP, LinkKeys, OutboxKeys
from cq.observers.links.log import oldest_versions
from cq.observers.links.spec import links_in
from cq.observers.links.state import LinkStop, read_view
from cq.observers.monitoring.findings import Level, find_remarks
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import MEASURE, TaskId
from cq.observers.scheduling.task import WorkPart
from cq.observers.tasks.timed import TimedTask
from cq.observers.telemetry.bus import emit
from cq.queue.rows import oldest_by_bucket
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.sizes import count_rows
from cq.store.transact import transact
from cq.store.version_clock import clock_of

MEASURE_SECONDS: Final = 15.0
"""The period for a queue with a backlog, or with a stopped link or outbox."""
IDLE_SECONDS: Final = 30.0
"""The period for an idle queue, if it is the worker's only one; more idle queues multiply it by their number."""
SELDOM_SECONDS: Final = 120.0
"""The longest period, whatever the number of idle queues."""


FINDINGS_SECONDS: Final = 60.0
"""The least pause between two looks at the whole store."""
_SECONDS_FOR_QUEUE: Final = 0.1
"""This pause grows with the number of queues, because a look reads each of them."""


class LinkMeasurement(NamedTuple):
    """The backlog of a link or an outbox, by the fields of the event `link_measured`."""

    link: str
    link_bytes: int
    link_lag: float
    stopped: int
    paused: int = 0


class Measurement(NamedTuple):
    """The backlog of a queue, by the fields of the event `queue_measured`, and those of its links and its outbox."""

    waiting_buckets: int
    waiting_bytes: int
    oldest: float
    links: list[LinkMeasurement]

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no updates, no entries to send, and no stopped link or outbox."""
        return not (self.waiting_buckets or any(each.link_bytes or each.stopped for each in self.links))


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
        self._links: set[str] = set()  # those measured latest

    def run(self) -> float:
        """Measure the queue; returns the seconds until the next measurement."""
        found = transact(self._db, lambda tr: measure(tr, self.name))
        emit(
            "queue_measured",
            queue=self.name,
            waiting_buckets=found.waiting_buckets,
            waiting_bytes=found.waiting_bytes,
            oldest=found.oldest,
        )
        for link in self._links - {each.link for each in found.links}:
            emit("link_handed_over", queue=self.name, link=link)
        self._links = {each.link for each in found.links}
        for each in found.links:
            emit(
                "link_measured",
                queue=self.name,
                link=each.link,
                link_bytes=each.link_bytes,
                link_lag=each.link_lag,
                stopped=each.stopped,
                paused=each.paused,
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
        for link in self._links:
            emit("link_handed_over", queue=self.name, link=link)
        self._links = set()


class FindingsTask(TimedTask):
    """Counts the problems and warnings that `cq status` shows."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, "")

    def __str__(self) -> str:
        return "findings about the store"

    def run(self) -> float:
        """Look at the store; returns the seconds until the next look."""
        seen = overview(self._db)
        levels = [each.level for each in find_remarks(seen)]
        emit("store_checked", problems=levels.count(Level.PROBLEM), warnings=levels.count(Level.WARNING))
        return max(FINDINGS_SECONDS, _SECONDS_FOR_QUEUE * len(seen.queues))

    def end(self) -> None:
        """Stop counting: another worker has acquired the task."""
        emit("store_handed_over")


def measuring_parts(db: Database, names: Iterable[str], idle: set[str]) -> Iterator[WorkPart]:
    """The work of measuring these queues and the store; the tasks share `idle`, see `MeasureTask`."""
    yield WorkPart.single(TaskId(MEASURE, "", 0), None, partial(FindingsTask, db))
    for name in names:
        yield WorkPart.single(TaskId(MEASURE, name, 0), None, partial(MeasureTask, db, name, idle))


def measure(tr: Transaction, name: str) -> Measurement:
    """Measure the backlog of a queue.

    Ages are relative to the transaction's read version. In an embedded store this is the version of the latest commit;
    workers commit heartbeats, so it is at most a few seconds old.
    """
    snapshot, queue = tr.snapshot, QueueKeys(name)
    # The requests of an idle queue start before the first wait: four, and one more for each link.
    version = tr.get_read_version()
    links = [LinkKeys(name, link) for link in (*_links(snapshot, name), APP)]
    # One range for entries and the reason of a stop: its key is the next one after the last entry.
    firsts = [snapshot.get_range(link.all_rows()[0], after(link.stopped), limit=1) for link in links]
    outbox = snapshot.get(OutboxKeys(name).stopped)
    waiting = oldest_by_bucket(snapshot, queue)
    now, clock = version.wait(), clock_of(tr.db)
    clock.observe(now)
    found = [
        _measure_link(tr, link, now) if has_entries else LinkMeasurement(link.link, 0, 0.0, 0)
        for link, first in zip(links, firsts, strict=True)
        for has_entries in [bool(first.to_list())]
        if has_entries or link.link != APP
    ]
    if LinkStop.from_bytes(outbox.value).epoch == 0:
        found.append(LinkMeasurement(OutboxKeys(name).link, 0, 0.0, 1))
    size = count_rows(snapshot, *queue.all_rows()).bytes if waiting else 0
    oldest = clock.age(min((each for each in waiting.values() if each is not None), default=now), now)
    return Measurement(len(waiting), size, oldest, found)


def _measure_link(tr: Transaction, link: LinkKeys, now: int) -> LinkMeasurement:
    """Measure a link with entries, or one that is stopped."""
    oldest, view = min(oldest_versions(tr.snapshot, link), default=now), read_view(tr.snapshot, link, ())()
    return LinkMeasurement(
        link.link,
        count_rows(tr.snapshot, *link.all_rows()).bytes,
        clock_of(tr.db).age(oldest, now),
        int(view.stopped is not None),
        int(view.control.paused),
    )


def _links(tr: TransactionRead, name: str) -> Iterable[str]:
    """The names of the links of a queue; none if its configuration cannot be read."""
    with suppress(CqError):
        return links_in(read_config(tr, name))
    return ()
