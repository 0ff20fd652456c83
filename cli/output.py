"""What commands print: results to standard output, everything else to standard error, colour only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from cq.jsonvalues import to_json

_WIDE: Final = 200  # where lines need not fit a screen

stderr: Final = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One line of JSON, in ASCII where standard output is not Unicode."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    typer.echo(json.dumps(value, ensure_ascii=not encoding.startswith("utf")))


def as_word(value: Any) -> str:
    """As people read it: text without quotes, unless it would break the line or steer the terminal."""
    plain = to_json(value)
    if isinstance(plain, str) and plain.isprintable():
        return plain
    return json.dumps(plain, ensure_ascii=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """A table; columns named in `right` are numbers."""
    console = make_console()
    console.print(make_table(columns, rows, right), soft_wrap=not console.is_terminal)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """What `print_table` prints."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def make_console() -> Console:
    """Standard output; wide where lines need not fit a screen."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def quantity(number: int, noun: str) -> str:
    """A number with its noun: "1 update", "2,000 updates"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def note(message: str) -> None:
    """A line on standard error."""
    stderr.print(message, markup=False)


def progress(*, counted: bool = True) -> Progress:
    """A progress display on standard error; it shows nothing unless that is a terminal."""
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    if counted:
        columns += [BarColumn(), MofNCompleteColumn()]
    return Progress(
        *columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal
    )
