"""The first page: all queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cq.admin.queue_status import QueueStatus
from cq.cli.web.pages.added import added_minutes
from cq.cli.web.pages.charts import Line
from cq.cli.web.pages.text import age, count
from cq.cli.web.pages.verdict import Level, verdict
from cq.cli.web.pages.web_page import Part, WebPage
from cq.cli.web.sampling.recent import Sample
from cq.cli.web.sampling.snapshot import HISTORY, OVERVIEW, StoreSnapshot
from cq.observers.monitoring.export_status import ExportStatus
from cq.observers.monitoring.store_overview import Activity, Overview
from cq.observers.telemetry.history import MINUTE_SECONDS, HistoryMinute

_LATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the table of queues, and in the figures of its own page.

    Attributes:
        status, activity, export: of the queue; `export` is None without one.
        level, state: its state as one word, and how much that matters.
        trend: queued rows per second more or less than a while ago; None if unknown.
        backlog: a chart of the samples of this server.
        added: a chart of the estimated numbers of rows added in each minute with samples.
        added_per_second: the last of them per second; None if unknown.
        delays, rates: charts of the past hour, from what workers stored.
    """

    status: QueueStatus
    activity: Activity
    export: ExportStatus | None
    level: Level
    state: str
    trend: float | None
    backlog: Line
    delays: Line
    rates: Line
    added: Line
    added_per_second: float | None

    @property
    def is_urgent(self) -> bool:
        """Whether its state needs attention."""
        return self.level in (Level.WARNING, Level.PROBLEM)


def queues_page() -> WebPage:
    """The page of all queues."""
    parts = (Part("verdict"), Part("queues"))
    return WebPage("/", "Queues", "/", (OVERVIEW, HISTORY), parts, _view)


def _view(snapshot: StoreSnapshot) -> Mapping[str, Any]:
    seen = snapshot.value(OVERVIEW, Overview)
    rows = [] if seen is None else [queue_row(seen, queue, snapshot) for queue in seen.queues]
    states = {row.status.name: row.state for row in rows}
    shown = [
        row
        for row in rows
        if row.status.level_of is None or (row.is_urgent and row.state != states.get(row.status.level_of))
    ]
    return {"verdict": verdict(snapshot), "rows": shown}


def queue_row(seen: Overview, queue: QueueStatus, snapshot: StoreSnapshot) -> QueueRow:
    """The row of a queue."""
    samples = snapshot.recent.of(queue.name)
    times = [each.at for each in samples]
    history: dict[str, list[HistoryMinute]] = snapshot.value(HISTORY, dict) or {}
    hour = history.get(queue.name, [])
    minutes = [float(each.begins) for each in hour]
    level, state = _state(seen, queue)
    added = added_minutes(hour, samples)
    return QueueRow(
        queue,
        seen.activity[queue.name],
        seen.exports.get(queue.name),
        level,
        state,
        trend_of(samples),
        Line(
            "queued rows, sampled while a page was open",
            times,
            [each.rows for each in samples],
            count,
        ),
        Line("highest delay of a minute", minutes, [each.oldest_seconds for each in hour], age),
        Line("updates combined in a minute", minutes, [each.updates for each in hour], count),
        Line(
            "rows added in a minute, estimated",
            [each.begins for each in added],
            [each.rows for each in added],
            count,
        ),
        added[-1].rows / MINUTE_SECONDS if added else None,
    )


def _state(seen: Overview, queue: QueueStatus) -> tuple[Level, str]:
    export = seen.exports.get(queue.name)
    if queue.problem:
        return Level.PROBLEM, "unreadable"
    if queue.paused:
        return Level.WARNING, "paused"
    if not seen.activity[queue.name].workers:
        return Level.PROBLEM, "no worker"
    if queue.full:
        return Level.PROBLEM, "full"
    if export is not None and export.state in ("failing", "stopped", "unreadable"):
        return Level.PROBLEM, f"export {export.state}"
    if queue.aside:
        return Level.WARNING, "keys set aside"
    if (queue.oldest_seconds or 0.0) > _LATE_SECONDS:
        return Level.WARNING, "late"
    if queue.former_buckets is not None or queue.backfilling:
        return Level.NOTE, "changing"
    return Level.GOOD, "combining" if queue.rows else "idle"


def trend_of(samples: Sequence[Sample], seconds: float = 20.0) -> float | None:
    """Queued rows per second more (or less) now than up to `seconds` ago; None with less than two samples.

    >>> trend_of([Sample(0, 10, 0, 0), Sample(10, 30, 0, 0)])
    2.0
    """
    if len(samples) < 2:
        return None
    last = samples[-1]
    first = next(each for each in samples if each.at >= last.at - seconds)
    return (last.rows - first.rows) / (last.at - first.at) if last.at > first.at else None
