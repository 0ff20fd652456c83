"""The screen of `cq status --watch`: rates and charts, redrawn in place, within the height of the terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cq.admin.queue_status import QueueStatus
from cq.cli.operate.status_view import NO_QUEUE, WORKER_COLUMNS, by_urgency, queue_columns, shown_queues
from cq.cli.shared.chart import sparkline
from cq.cli.shared.output import quantity
from cq.cli.shared.table import Lines, ShownColumn, folded, table_of
from cq.observers.monitoring.findings import remarks
from cq.observers.monitoring.store_overview import Overview
from cq.plain_text import printable

_POLL_SECONDS: Final = 0.1  # between two looks at the size of the terminal
_SAMPLES: Final = 400  # more than a chart of any terminal shows
_CHART: Final = 10  # cells of a chart on a narrow terminal
_LONG_CHART: Final = 30
_WIDE: Final = 140  # columns of a terminal with long charts

Sample = tuple[int, float]
"""The queued rows, and the updates a second."""


@dataclass
class Samples:
    """The figures of each queue, and of all queues, since the beginning."""

    of_all: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    by_queue: dict[str, deque[Sample]] = field(default_factory=dict)

    def add(self, found: Overview) -> None:
        """Keep the figures of this overview; forget queues that do not exist any more."""
        now = {
            queue.name: (queue.rows, found.activity[queue.name].updates_per_second) for queue in found.queues
        }
        self.by_queue = {name: self.by_queue.get(name, deque(maxlen=_SAMPLES)) for name in now}
        for name, sample in now.items():
            self.by_queue[name].append(sample)
        self.of_all.append((sum(rows for rows, _ in now.values()), sum(rate for _, rate in now.values())))

    def chart(self, samples: Iterable[Sample], figure: int, size: int) -> str:
        """A chart of the latest `size` samples: of the rows for figure 0, of the updates a second for 1."""
        return sparkline([sample[figure] for sample in samples][-size:])


def watch(console: Console, read: Callable[[], Overview], seconds: float, *, wide: bool) -> None:
    """Draw an overview every `seconds`, and at once when the terminal changes its size; until an exception."""
    samples = Samples()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            found, until = read(), time.monotonic() + seconds
            samples.add(found)
            drawn = None
            while time.monotonic() < until:
                if console.size != drawn:
                    drawn = console.size
                    lines = screen(found, samples, (drawn.width, drawn.height), wide=wide)
                    live.update(Group(*lines), refresh=True)
                time.sleep(_POLL_SECONDS)


def screen(found: Overview, samples: Samples, size: tuple[int, int], *, wide: bool = False) -> Lines:
    """The lines of the screen: at most as many, and as long, as the terminal has room for."""
    width, height = size
    seen = by_urgency(found)
    title = folded(_title(seen, samples), width)[:1]
    shown = shown_queues(seen, every=wide)
    queues = table_of(_watched_columns(seen, samples, width), shown, width, wide=wide)
    workers = table_of(WORKER_COLUMNS, seen.workers, width, wide=wide)
    warnings = [folded(Text(printable(line)), width) for line in remarks(seen)]
    parts = [
        ("queue", *queues.laid_out(width)) if seen.queues else ("queue", [], [folded(Text(NO_QUEUE), width)]),
        *([("worker", *workers.laid_out(width))] if seen.workers else []),
        *([("warning", [], warnings)] if warnings else []),
    ]
    sizes = [1 + len(head) + sum(map(len, rows)) for _, head, rows in parts]  # with an empty line above
    lines = [*title]
    for (noun, head, rows), allowed in zip(parts, shared(sizes, height - len(title)), strict=True):
        lines += [Text(), *cropped(head, rows, allowed - 1, noun)][:allowed]
    return lines


def shared(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room`: each part gets the lines that it wants, or an equal share of those that smaller parts leave."""
    given = [0] * len(wanted)
    for done, at in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[at] = max(0, min(wanted[at], room // (len(wanted) - done)))
        room -= given[at]
    return given


def cropped(head: Lines, rows: Sequence[Lines], room: int, noun: str) -> Lines:
    """The head and the first rows that fit `room` lines; the last line says how many rows are hidden."""
    if len(head) + sum(map(len, rows)) <= room:
        return [*head, *(line for row in rows for line in row)]
    lines, hidden = list(head), len(rows)
    for row in rows:
        if len(lines) + len(row) >= room:
            if lines == head:  # a part of the most urgent row is better than no row
                lines += row[: max(0, room - 1 - len(lines))]
                hidden -= 1
            break
        lines += row
        hidden -= 1
    return [*lines, Text(f"({quantity(hidden, f'more {noun}')} hidden)", style="dim")]


def _title(found: Overview, samples: Samples) -> Text:
    rows, rate = samples.of_all[-1]
    alive = sum(worker.alive for worker in found.workers)
    return Text("  ").join(
        Text(part)
        for part in (
            f"{datetime.now(UTC):%H:%M:%S} UTC",
            quantity(sum(queue.level_of is None for queue in found.queues), "queue"),
            f"{quantity(alive, 'worker')} alive",
            f"{rows:,} rows {samples.chart(samples.of_all, 0, _CHART)}",
            f"{rate:,.1f} updates/s {samples.chart(samples.of_all, 1, _CHART)}",
        )
    )


def _watched_columns(found: Overview, samples: Samples, width: int) -> list[ShownColumn]:
    """The columns of queues with charts; the number of updates set aside gives way to them."""
    size = _LONG_CHART if width >= _WIDE else _CHART

    def rows(queue: QueueStatus) -> str:
        return samples.chart(samples.by_queue[queue.name], 0, size)

    def rates(queue: QueueStatus) -> str:
        return samples.chart(samples.by_queue[queue.name], 1, size)

    columns = []
    for column in queue_columns(found):
        columns.append(column._replace(is_essential=column.is_essential and column.name != "set aside"))
        if column.name == "rows":
            columns.append(ShownColumn("backlog", rows, is_essential=True))
        if column.name == "updates/s":
            columns.append(ShownColumn("combined", rates, is_essential=True))
    return columns
