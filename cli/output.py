"""What commands print: results to standard output, everything else to standard error, colour only on a terminal.

Commands print by these functions only: they escape control characters and the like in text of any origin.
"""

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
from cq.plaintext import printable

_WIDE: Final = 200  # where lines need not fit a screen

stderr: Final = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One line of JSON, in ASCII where standard output is not Unicode."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    typer.echo(_dumps(value) if encoding.startswith("utf") else json.dumps(value))


def as_word(value: Any) -> str:
    """As people read it: text without quotes, unless it would break the line or steer the terminal; of any length."""
    plain = to_json(value)
    if isinstance(plain, str) and plain.isprintable():
        return plain
    return _dumps(plain)


def _dumps(value: Any) -> str:
    """JSON of printable characters; `json` itself leaves some that terminals obey, such as U+009B and U+202E."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def say(message: str) -> None:
    """A line on standard output for people, made printable."""
    typer.echo(printable(message))


def print_words(*values: Any) -> None:
    """A line of data on standard output, with tabs between the values."""
    typer.echo("\t".join(map(as_word, values)))


def print_document(text: str) -> None:
    """Text on standard output as it is; its author has escaped it."""
    typer.echo(text, nl=False)


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
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def make_lines(lines: Iterable[str]) -> Text:
    """Lines of text, each made printable."""
    return Text("\n".join(map(printable, lines)))


def make_console() -> Console:
    """Standard output; wide where lines need not fit a screen."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def quantity(number: int, noun: str) -> str:
    """A number with its noun: "1 update", "2,000 updates"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def note(message: str) -> None:
    """A line on standard error, made printable."""
    stderr.print(Text(printable(message)))  # as Text: neither markup nor names of emojis are replaced in it


def progress(*, counted: bool = True) -> Progress:
    """A progress display on standard error; it shows nothing unless that is a terminal."""
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    if counted:
        columns += [BarColumn(), MofNCompleteColumn()]
    return Progress(
        *columns, TimeElapsedColumn(), console=stderr, transient=True, disable=not stderr.is_terminal
    )
