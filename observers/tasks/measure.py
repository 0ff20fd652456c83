"""The task that measures a store for metrics: the backlog of each queue and link, and the findings.

One worker measures the whole store. With many queues it does so less often, because each look reads all of them.
"""

from __future__ import annotations

from typing import Final

from cq.observers.monitoring.findings import Level, find_remarks
from cq.observers.monitoring.link_status import PAUSED
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling.members import MEASURE, TaskId
from cq.observers.scheduling.task import WorkPart
from cq.observers.tasks.timed import TimedTask
from cq.observers.telemetry.bus import emit
from cq.store.api import Database

MEASURE_SECONDS: Final = 15.0
"""The least pause between two looks at the store."""
_SECONDS_FOR_QUEUE: Final = 0.05
"""This pause grows with the number of queues."""


class MeasureTask(TimedTask):
    """Measures the backlogs, and counts the problems and warnings that `cq status` shows."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, "")
        self._queues: set[str] = set()  # those measured latest
        self._links: set[tuple[str, str]] = set()

    def __str__(self) -> str:
        return "measurement of the store"

    def run(self) -> float:
        """Look at the store; returns the seconds until the next look."""
        seen = overview(self._db)
        queues = {each.name: each for each in seen.queues if not each.problem}
        links = {(each.queue, each.link): each for each in [*seen.links, *seen.outboxes.values()]}
        for name, queue in queues.items():
            emit(
                "queue_measured",
                queue=name,
                waiting_buckets=queue.waiting_buckets,
                waiting_bytes=queue.bytes,
                oldest=queue.oldest_seconds or 0.0,
            )
        for (name, link), each in links.items():
            emit(
                "link_measured",
                queue=name,
                link=link,
                link_bytes=each.bytes or 0,
                link_lag=each.oldest_seconds or 0.0,
                stopped=int(each.state == "stopped"),
                paused=int(each.state == PAUSED),
            )
        levels = [each.level for each in find_remarks(seen)]
        emit("store_checked", problems=levels.count(Level.PROBLEM), warnings=levels.count(Level.WARNING))
        self._keep(set(queues), set(links))
        return max(MEASURE_SECONDS, _SECONDS_FOR_QUEUE * len(seen.queues))

    def end(self) -> None:
        """Stop measuring: another worker has acquired the task."""
        self._keep(set(), set())
        emit("store_handed_over")

    def _keep(self, queues: set[str], links: set[tuple[str, str]]) -> None:
        """Emit events for the queues and links that are no longer measured."""
        for name in self._queues - queues:
            emit("queue_handed_over", queue=name)
        for name, link in self._links - links:
            emit("link_handed_over", queue=name, link=link)
        self._queues, self._links = queues, links


def measuring_part(db: Database) -> WorkPart:
    """The work of measuring the store."""
    return WorkPart.single(TaskId(MEASURE, "", 0), None, lambda: MeasureTask(db))
