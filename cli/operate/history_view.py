"""What `cq status --history` shows: the figures of the past hour, with a chart of their minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from cq.cli.operate.status_view import NO_QUEUE, hidden_levels, shown_queues
from cq.cli.shared.output import make_console, print_json, print_rich, say
from cq.cli.shared.sparkline import sparkline
from cq.cli.shared.table import FittedTable
from cq.observers.monitoring.store_overview import overview
from cq.observers.telemetry.history import HistoryMinute, read_history
from cq.store.api import Database

_COLUMNS: Final = ("queue", "figure", "past hour", "its minutes")
_COUNTS: Final = {"updates": "updates", "passes": "passes", "conflicts": "conflicts", "set aside": "aside"}
_WIDE: Final = 110  # columns of a terminal with a block for each minute
_TOGETHER: Final = 3  # minutes of a block on a narrower one


def print_history(db: Database, queue: str | None, *, wide: bool, json: bool) -> None:
    """Print the past hour of a queue with its levels, or of all queues; raises `QueueNotConfigured`.

    A terminal shows the levels that `cq status` shows: all with `wide`.
    """
    console, found = make_console(), overview(db, queue)
    shown = shown_queues(found, every=wide or json or not console.is_terminal)
    history = read_history(db, [each.name for each in shown])
    if json:
        for each in shown:
            minutes = [{"begins": minute.begins, **asdict(minute)} for minute in history[each.name]]
            print_json({"name": each.name, "level_of": each.level_of, "minutes": minutes})
        return
    if not shown:
        say(NO_QUEUE)
        return
    together = _TOGETHER if console.is_terminal and console.width < _WIDE else 1
    table = FittedTable(_COLUMNS, _rows(history, together, console.options.ascii_only), right=["past hour"])
    print_rich(table, *hidden_levels(found, shown))


def _rows(
    found: Mapping[str, Sequence[HistoryMinute]], together: int, is_ascii: bool
) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table, with a block for so many minutes together."""

    def chart(numbers: Sequence[float], merged: Callable[[Sequence[float]], float]) -> str:
        blocks = [merged(numbers[at : at + together]) for at in range(0, len(numbers), together)]
        return sparkline(blocks, is_ascii=is_ascii)

    for name, minutes in found.items():
        for figure, field in _COUNTS.items():
            counts = [getattr(minute, field) for minute in minutes]
            yield name, figure, f"{sum(counts):,}", chart(counts, sum)
        ages = [minute.oldest_seconds for minute in minutes]
        yield name, "lag", f"{max(ages):,.1f} s", chart(ages, max)
