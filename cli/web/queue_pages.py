"""The pages of queues: lists of all, the first of which opens the dashboard, and a page for each queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cq.admin.queue_status import QueueStatus
from cq.cli.operate.status_view import level_of, queue_states, shown_queues
from cq.cli.shared.output import quantity
from cq.cli.web.charts import Line
from cq.cli.web.pages import LOOKUP, WebPage
from cq.cli.web.reads import QueueDetail
from cq.cli.web.sampler import HISTORY, OVERVIEW, StoreSnapshot, Topic
from cq.cli.web.text import age, count
from cq.observers.feeds.changelog import change_of
from cq.observers.monitoring.findings import Level
from cq.observers.monitoring.link_status import LinkStatus
from cq.observers.monitoring.store_overview import Activity, Overview
from cq.observers.telemetry.history import HistoryMinute

PAGE: Final = "/page/"
"""The path of the second and later pages of queues, before the number."""
ROWS: Final = 100
"""Rows of a page of queues: each has several charts."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue in the table of queues, and in the figures of its own page.

    Attributes:
        status, activity: of the queue.
        links: of the queue.
        level, state: its states in words, and how much they matter.
        delays, rates: charts of the past hour, from what workers stored.
    """

    status: QueueStatus
    activity: Activity
    links: Sequence[LinkStatus]
    level: Level
    state: str
    delays: Line
    rates: Line


def queues_page(number: int = 1) -> WebPage:
    """The page of all queues, of which each has the next 100, from number 1 on."""
    path, title = _path(number), "Queues" if number == 1 else f"Queues, page {number:,}"
    topics = (OVERVIEW, HISTORY)
    return WebPage(path, title, "/", ("queues",), lambda snapshot: _view(snapshot, number), topics)


def _path(number: int) -> str:
    return "/" if number == 1 else f"{PAGE}{number}"


def _view(snapshot: StoreSnapshot, number: int) -> Mapping[str, Any]:
    seen, begin = snapshot.value(OVERVIEW, Overview), (number - 1) * ROWS
    shown = [] if seen is None else shown_queues(seen, every=False)
    rows = [] if seen is None else [queue_row(seen, each, snapshot) for each in shown[begin : begin + ROWS]]
    end = begin + len(rows)
    return {
        "rows": rows,
        "place": (min(begin + 1, end), end, len(shown)),
        "before": _path(number - 1) if begin else "",
        "after": _path(number + 1) if end < len(shown) else "",
    }


def queue_row(seen: Overview, queue: QueueStatus, snapshot: StoreSnapshot) -> QueueRow:
    """The row of a queue."""
    history: dict[str, list[HistoryMinute]] = snapshot.value(HISTORY, dict) or {}
    hour = history.get(queue.name, [])
    minutes = [float(each.begins) for each in hour]
    states = queue_states(queue, seen)
    return QueueRow(
        queue,
        seen.activity[queue.name],
        seen.links_of(queue.name),
        level_of(states[0]),
        ", ".join(states),
        Line("highest delay of a minute", minutes, [each.oldest_seconds for each in hour], age),
        Line("updates combined in a minute", minutes, [each.updates for each in hour], count),
    )


_MAX_CELLS: Final = 256
_STEPS: Final = (0.5, 2.0, 10.0, 60.0)
"""Ages in seconds between the five shades of a bucket with queued updates."""
_LEGEND: Final = ("nothing queued", "under 0.5 s", "0.5 to 2 s", "2 to 10 s", "10 to 60 s", "60 s and more")
"""The meaning of each shade."""
_CELL: Final = 16
_COLUMNS: Final = 32


def queue_page(name: str) -> WebPage:
    """The page of a queue."""
    topics = (OVERVIEW, HISTORY, Topic("queue", name))
    parts = ("figures", "levels", "buckets", LOOKUP, "top", "changes", "settings")
    return WebPage(
        f"/queues/{name}", name, "/", parts, lambda snapshot: _view_of_queue(snapshot, name), topics, name
    )


def _view_of_queue(snapshot: StoreSnapshot, name: str) -> Mapping[str, Any]:
    seen, detail = snapshot.value(OVERVIEW, Overview), snapshot.value(Topic("queue", name), QueueDetail)
    rows = {}
    if seen is not None:
        queues = (each for each in seen.queues if name in (each.name, each.level_of))
        rows = {each.name: queue_row(seen, each, snapshot) for each in queues}
    changes = detail.changes if detail else None
    return {
        "name": name,
        "row": rows.pop(name, None),
        "rows": list(rows.values()),
        "detail": detail,
        "changes": None if changes is None else [(each.sent, change_of(each)) for each in changes],
        "buckets": bucket_map(detail.config.buckets, detail.ages) if detail else None,
    }


def bucket_map(buckets: int, ages: Mapping[int, float]) -> Mapping[str, Any]:
    """The map of a queue's buckets; above 256 buckets, each square stands for several and has the age of the oldest."""
    each = -(-buckets // _MAX_CELLS)
    groups: dict[int, float] = {}
    for bucket, seconds in ages.items():
        groups[bucket // each] = max(seconds, groups.get(bucket // each, 0.0))
    number = -(-buckets // each)
    columns = min(number, _COLUMNS)
    has = "has" if len(ages) == 1 else "have"
    text = f"{len(ages):,} of {quantity(buckets, 'bucket')} {has} queued updates"
    return {
        "text": text if each == 1 else f"{text}; each square stands for {each} buckets",
        "width": columns * _CELL,
        "height": -(-number // columns) * _CELL,
        "squares": [_square(cell, columns, each, groups.get(cell)) for cell in range(number)],
        "legend": _LEGEND,
        "oldest": sorted(ages.items(), key=lambda item: item[::-1], reverse=True)[:5],
    }


def _square(cell: int, columns: int, each: int, seconds: float | None) -> tuple[float, float, int, int, str]:
    """The place of a square, its side, its shade, and its text."""
    shade = 0 if seconds is None else 1 + sum(seconds >= step for step in _STEPS)
    # The size of a square grows with its shade: colour is not the only difference.
    side = 4 + 2 * shade
    x, y = (place * _CELL + (_CELL - side) / 2 for place in (cell % columns, cell // columns))
    name = f"bucket {cell}" if each == 1 else f"buckets {cell * each} to {(cell + 1) * each - 1}"
    return x, y, side, shade, f"{name}: {'nothing queued' if seconds is None else age(seconds)}"
