"""The page of one queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cq.cli.web.pages.queues import queue_row
from cq.cli.web.pages.text import age, plural
from cq.cli.web.pages.web_page import LOOKUP, WebPage
from cq.cli.web.sampling.reads import QueueDetail
from cq.cli.web.sampling.snapshot import HISTORY, OVERVIEW, StoreSnapshot, Topic
from cq.observers.feeds.changelog import change_of
from cq.observers.monitoring.store_overview import Overview

_MAX_CELLS: Final = 256
_STEPS: Final = (0.5, 2.0, 10.0, 60.0)
"""Ages in seconds between the five shades of a bucket with queued updates."""
_CELL: Final = 16
_COLUMNS: Final = 32


class BucketSquare(NamedTuple):
    """A square of the map of buckets: its place, its side, its shade, and its text."""

    x: float
    y: float
    side: int
    shade: int
    text: str


class BucketMap(NamedTuple):
    """A map of the buckets: how long their oldest updates have waited.

    Attributes:
        text: the map in words.
        width, height: its size.
        squares: its squares, each for one or several buckets.
        legend: (shade, its meaning).
        oldest: (bucket, seconds) of the buckets whose updates are oldest.
    """

    text: str
    width: int
    height: int
    squares: Sequence[BucketSquare]
    legend: Sequence[tuple[int, str]]
    oldest: Sequence[tuple[int, float]]


def queue_page(name: str) -> WebPage:
    """The page of a queue."""
    topics = (OVERVIEW, HISTORY, Topic("queue", name))
    parts = ("figures", "levels", "buckets", LOOKUP, "top", "totals", "changes", "settings")
    return WebPage(f"/queues/{name}", name, "/", parts, lambda snapshot: _view(snapshot, name), topics, name)


def _view(snapshot: StoreSnapshot, name: str) -> Mapping[str, Any]:
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


def bucket_map(buckets: int, ages: Mapping[int, float]) -> BucketMap:
    """The map of a queue's buckets; above 256 buckets, each square stands for several and has the age of the oldest."""
    each = -(-buckets // _MAX_CELLS)
    groups: dict[int, float] = {}
    for bucket, seconds in ages.items():
        groups[bucket // each] = max(seconds, groups.get(bucket // each, 0.0))
    number = -(-buckets // each)
    columns = min(number, _COLUMNS)
    has = "has" if len(ages) == 1 else "have"
    text = f"{len(ages):,} of {plural(buckets, 'bucket')} {has} queued updates"
    return BucketMap(
        text if each == 1 else f"{text}; each square stands for {each} buckets",
        columns * _CELL,
        -(-number // columns) * _CELL,
        [_square(cell, columns, each, groups.get(cell)) for cell in range(number)],
        [(shade, _meaning(shade)) for shade in range(len(_STEPS) + 2)],
        sorted(ages.items(), key=lambda item: item[::-1], reverse=True)[:5],
    )


def _square(cell: int, columns: int, each: int, seconds: float | None) -> BucketSquare:
    shade = 0 if seconds is None else 1 + sum(seconds >= step for step in _STEPS)
    # The size of a square grows with its shade: colour is not the only difference.
    side = 4 + 2 * shade
    x, y = (place * _CELL + (_CELL - side) / 2 for place in (cell % columns, cell // columns))
    name = f"bucket {cell}" if each == 1 else f"buckets {cell * each} to {(cell + 1) * each - 1}"
    return BucketSquare(x, y, side, shade, f"{name}: {'nothing queued' if seconds is None else age(seconds)}")


def _meaning(shade: int) -> str:
    if shade == 0:
        return "nothing queued"
    if shade == 1:
        return f"under {_STEPS[0]:g} s"
    if shade == len(_STEPS) + 1:
        return f"{_STEPS[-1]:g} s and more"
    return f"{_STEPS[shade - 2]:g} to {_STEPS[shade - 1]:g} s"
