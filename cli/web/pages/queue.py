"""The page of one queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from markupsafe import Markup

from cq.cli.web.pages.queues import queue_row
from cq.cli.web.pages.text import age, plural
from cq.cli.web.pages.web_page import LOOKUP, WebPage
from cq.cli.web.sampling.reads import QueueDetail
from cq.cli.web.sampling.snapshot import HISTORY, OVERVIEW, StoreSnapshot, Topic
from cq.observers.feeds.changelog import change_of
from cq.observers.monitoring.store_overview import Overview

_MOST_CELLS: Final = 256
_STEPS: Final = (0.5, 2.0, 10.0, 60.0)
"""Ages in seconds between the five shades of a bucket with queued updates."""
_CELL: Final = 16
_COLUMNS: Final = 32


@dataclass(frozen=True, slots=True)
class BucketMap:
    """A map of the buckets: how long their oldest updates have waited.

    Attributes:
        text: the map in words.
        drawing: the map as SVG.
        legend: (shade, its meaning).
        oldest: (bucket, seconds) of the buckets whose updates are oldest.
    """

    text: str
    drawing: Markup
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
    """The map of a queue's buckets; above 256 buckets, each cell stands for several and has the age of the oldest."""
    each = -(-buckets // _MOST_CELLS)
    groups: dict[int, float] = {}
    for bucket, seconds in ages.items():
        groups[bucket // each] = max(seconds, groups.get(bucket // each, 0.0))
    cells = -(-buckets // each)
    oldest = sorted(((seconds, bucket) for bucket, seconds in ages.items()), reverse=True)[:5]
    text = (
        f"{len(ages):,} of {plural(buckets, 'bucket')} {'has' if len(ages) == 1 else 'have'} queued updates"
    )
    if each > 1:
        text += f"; each square stands for {each} buckets"
    return BucketMap(
        text,
        _drawing(cells, each, groups),
        [(shade, _meaning(shade)) for shade in range(len(_STEPS) + 2)],
        [(bucket, seconds) for seconds, bucket in oldest],
    )


def _drawing(cells: int, each: int, ages: Mapping[int, float]) -> Markup:
    columns = min(cells, _COLUMNS)
    shapes = []
    for cell in range(cells):
        seconds = ages.get(cell)
        shade = 0 if seconds is None else 1 + sum(seconds >= step for step in _STEPS)
        # The size of a square grows with its shade: colour is not the only difference.
        side = 4 + 2 * shade
        x, y = cell % columns * _CELL + (_CELL - side) / 2, cell // columns * _CELL + (_CELL - side) / 2
        name = f"bucket {cell}" if each == 1 else f"buckets {cell * each} to {(cell + 1) * each - 1}"
        title = escape(f"{name}: {'nothing queued' if seconds is None else age(seconds)}")
        shapes.append(
            f'<rect class="heat{shade}" x="{x:g}" y="{y:g}" width="{side}" height="{side}" rx="2">'
            f"<title>{title}</title></rect>"
        )
    width, height = columns * _CELL, -(-cells // columns) * _CELL
    return Markup(  # noqa: S704 - all are numbers
        f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f"{''.join(shapes)}</svg>"
    )


def _meaning(shade: int) -> str:
    if shade == 0:
        return "nothing queued"
    if shade == 1:
        return f"under {_STEPS[0]:g} s"
    if shade == len(_STEPS) + 1:
        return f"{_STEPS[-1]:g} s and more"
    return f"{_STEPS[shade - 2]:g} to {_STEPS[shade - 1]:g} s"
