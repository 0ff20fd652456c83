"""`cq status`: the backlogs of queues, and the workers."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cq.cli.operate.status_view import NO_QUEUE, WORKER_COLUMNS, hidden_levels, queue_columns, shown_queues
from cq.cli.shared.chart import sparkline
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, argument, flag
from cq.cli.shared.output import is_read, make_console, note, print_json, print_rich, say
from cq.cli.shared.table import FittedTable, table_of
from cq.observers.monitoring.findings import find_remarks
from cq.observers.monitoring.store_overview import Overview, overview
from cq.observers.telemetry.history import HistoryMinute, read_history
from cq.plain_text import message_of, printable
from cq.store.api import Database, error_code

WATCH_SECONDS: Final = 2.0
_COLUMNS: Final = ("queue", "figure", "past hour", "its minutes")
_COUNTS: Final = {"updates": "updates", "passes": "passes", "conflicts": "conflicts", "set aside": "aside"}
_TOGETHER: Final = (1, 3, 6, 12)  # minutes of a block of a chart: more on narrower terminals

commands = CommandSet()


@commands.command(
    "status",
    examples=["cq status", "cq status --watch", "cq status words --json", "cq status words --history"],
)
def show_status(
    options: Options,
    queue: Annotated[str | None, argument("QUEUE", "Name of a queue. Default: all queues.")] = None,
    watched: Annotated[
        bool,
        flag("--watch", "Repeat every 2 seconds, until ^C; on a terminal in place, warnings first."),
    ] = False,
    wide: Annotated[
        bool, flag("--wide", "Show all columns and levels on a terminal, not only columns that fit.")
    ] = False,
    history: Annotated[
        bool, flag("--history", "Show what workers did in the past hour, with a chart of its minutes.")
    ] = False,
) -> None:
    """Show the backlogs of queues, the workers and warnings.

    For each queue its state, backlog, age and rate; for each worker its state and rate; then each warning with
    what to do. The levels of a roll-up or window come after their queue. A terminal shows the columns that fit, and of
    several queues only those levels that need attention; a pipe shows all. With --json one line per queue, then one
    line with all workers and findings; with --history --json one line per queue with its minutes. The history lists
    queues and levels in the same way.
    """
    if history and watched:
        raise typer.BadParameter("expected --history or --watch, got both")
    db, console = options.read_store(), make_console()
    if history:
        print_history(db, queue, wide=wide, json=options.json)
        return
    if not watched:
        _print(console, overview(db, queue), wide, options.json)
        return
    try:
        _watch(db, console, queue, wide, options.json)
    except KeyboardInterrupt:
        return


def _watch(db: Database, console: Console, queue: str | None, wide: bool, json: bool) -> None:
    """Print the overview every 2 seconds, on a terminal in place, until the reader has ended or an exception."""
    in_place = console.is_terminal and not console.is_dumb_terminal and not json
    if in_place:
        # As ^C: the screen of before comes back, and the cursor.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Live(console=console, auto_refresh=False, screen=True) if in_place else nullcontext() as live:
        while is_read():
            found = _answered(db, queue)
            if live is not None:
                *tables, remarks = _parts(found, console.width, wide=wide)
                # The screen shows the first lines.
                live.update(Group(*_separated([remarks, *tables])), refresh=True)
            else:
                _print(console, found, wide, json)
                if not json:
                    say("")
            time.sleep(WATCH_SECONDS)


def _answered(db: Database, queue: str | None) -> Overview:
    """The overview; while the store fails, this says so and reads again."""
    while True:
        try:
            return overview(db, queue)
        except Exception as error:
            if error_code(error) is None:
                raise
            note(f"the store failed, again in {WATCH_SECONDS:g} s: {message_of(error)}")
            time.sleep(WATCH_SECONDS)


def _print(console: Console, found: Overview, wide: bool, json: bool) -> None:
    if not json:
        print_rich(*_separated(_parts(found, console.width if console.is_terminal else None, wide=wide)))
        return
    for queue in found.queues:
        outbox = found.outboxes.get(queue.name)
        print_json(
            {
                **asdict(queue),
                **asdict(found.activity[queue.name]),
                "links": [asdict(each) for each in found.links_of(queue.name)],
                "outbox": None if outbox is None else asdict(outbox),
            }
        )
    findings = [{**each._asdict(), "finding": each.finding.name.lower()} for each in find_remarks(found)]
    print_json({"workers": [asdict(worker) for worker in found.workers], "findings": findings})


def _parts(found: Overview, width: int | None, *, wide: bool) -> list[list[FittedTable | Text]]:
    """The queues, the workers, and the remarks, each with what to do about it."""
    queues = shown_queues(found, every=wide or width is None)
    table = table_of(queue_columns(found), queues, width, wide=wide) if queues else Text(NO_QUEUE)
    workers = [table_of(WORKER_COLUMNS, found.workers, width, wide=wide)] if found.workers else []
    remarks: list[FittedTable | Text] = []
    for each in find_remarks(found):
        remarks.append(Text(printable(str(each))))
        if each.instruction:
            remarks.append(Text(f"    {printable(each.instruction)}", "dim"))
    return [[table, *hidden_levels(found, queues)], [*workers], remarks]


def _separated(parts: Iterable[Sequence[FittedTable | Text]]) -> Iterator[FittedTable | Text]:
    """The parts with an empty line between them."""
    for at, part in enumerate(each for each in parts if each):
        yield from [Text()] if at else []
        yield from part


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
    *tables, narrowest = [
        FittedTable(_COLUMNS, _rows(history, each), right=["past hour"]) for each in _TOGETHER
    ]
    width = console.width if console.is_terminal else sys.maxsize
    table = next((each for each in tables if each.fits(width)), narrowest)
    print_rich(table, *hidden_levels(found, shown))


def _rows(found: Mapping[str, Sequence[HistoryMinute]], together: int) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table, with a block for so many minutes together."""

    def chart(numbers: Sequence[float], merged: Callable[[Sequence[float]], float]) -> str:
        return sparkline([merged(numbers[at : at + together]) for at in range(0, len(numbers), together)])

    for name, minutes in found.items():
        for figure, field in _COUNTS.items():
            counts = [getattr(minute, field) for minute in minutes]
            yield name, figure, f"{sum(counts):,}", chart(counts, sum)
        ages = [minute.oldest_seconds for minute in minutes]
        yield name, "lag", f"{max(ages):,.1f} s", chart(ages, max)
