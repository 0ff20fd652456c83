"""What `cq status --history` shows: the figures of the past hour, with a chart of their minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from cq.cli.operate.status_view import NO_QUEUE
from cq.cli.shared.output import make_console, print_json, print_table, say
from cq.cli.shared.sparkline import sparkline
from cq.config.queue import queue_names, read_config
from cq.observers.telemetry.history import HistoryMinute, read_history
from cq.store.api import Database, Transaction
from cq.store.transact import transact

_COLUMNS: Final = ("queue", "figure", "past hour", "its minutes")
_COUNTS: Final = {"updates": "updates", "passes": "passes", "conflicts": "conflicts", "set aside": "aside"}
_WIDE: Final = 110  # columns of a terminal with a block for each minute
_TOGETHER: Final = 3  # minutes of a block on a narrower one


def print_history(db: Database, queue: str | None, *, json: bool) -> None:
    """Print the past hour of a queue, or of all queues; raises `QueueNotConfigured`."""

    def names(tr: Transaction) -> list[str]:
        return queue_names(tr.snapshot) if queue is None else [read_config(tr.snapshot, queue).name]

    found = read_history(db, transact(db, names))
    if json:
        for name, minutes in found.items():
            print_json({"name": name, "minutes": [asdict(minute) for minute in minutes]})
        return
    if not found:
        say(NO_QUEUE)
        return
    console = make_console()
    together = _TOGETHER if console.is_terminal and console.width < _WIDE else 1
    print_table(_COLUMNS, _rows(found, together, console.options.ascii_only), right=["past hour"])


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
