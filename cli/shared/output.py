"""Output of commands: results on standard output, messages on standard error, colour only on a terminal.

Commands print with these functions only: they escape control characters in text of any origin.
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO, TypeVar
from weakref import WeakSet

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

from cq.cli.shared import streams
from cq.cli.shared.table import NO_VALUE, FittedTable
from cq.encoding.json_values import to_json
from cq.plain_text import escaped, printable

P = TypeVar("P", bound=Progress)

# `json.dumps` makes an encoder for each call with other settings than its own.
_json: Final = json_module.JSONEncoder(ensure_ascii=False).encode

stderr: Final = Console(stderr=True, highlight=False, soft_wrap=True)


_unread: Final[WeakSet[TextIO]] = WeakSet()
"""Standard outputs whose reader has ended."""


def is_read() -> bool:
    """Whether the reader of standard output has not ended; commands that print without an end ask before each line.

    After `head` or a pager has ended, further output is discarded, so that every other command finishes its work and
    keeps its exit status.
    """
    return sys.stdout not in _unread


def print_document(text: str | bytes) -> None:
    """Print escaped text, or bytes, without changes; without effect if the reader has ended. Raises `OSError`."""
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        _unread.add(sys.stdout)
        streams.discard()


def print_rich(*shown: Any) -> None:
    """Print tables and texts of rich; lines are only as long as the terminal, or of any length without a terminal."""
    console = make_console()
    with console.capture() as captured:
        for each in shown:
            console.print(each, soft_wrap=not console.is_terminal)
    print_document(captured.get())


def print_json(value: Any) -> None:
    """Print one line of JSON, in ASCII if standard output is not Unicode."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    print_document((json_text(value) if encoding.startswith("utf") else json_module.dumps(value)) + "\n")


def as_word(value: Any) -> str:
    """A value for people: text without quotes, unless it breaks the line or controls the terminal; of any length."""
    plain = to_json(value)
    if isinstance(plain, str) and plain.isprintable():
        return plain
    return json_text(plain)


def json_text(value: Any) -> str:
    """A line of JSON in printable characters; `json` leaves some that terminals obey, such as U+009B and U+202E."""
    text = _json(value)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json_module.dumps(letter)[1:-1] for letter in text)


def say(message: str) -> None:
    """Print a line for people on standard output, made printable."""
    print_document(printable(message) + "\n")


def print_line(json: bool, **fields: Any) -> None:
    """Print a line of data: the fields as JSON, or their values with tabs between them, and - for no value."""
    if json:
        print_json({name: to_json(value) for name, value in fields.items()})
    else:
        print_words(*("-" if value is None else value for value in fields.values()))


def print_words(*values: Any) -> None:
    """Print a line of data on standard output, with tabs between the values."""
    print_document("\t".join(map(as_word, values)) + "\n")


def print_bytes(data: bytes) -> None:
    """Print the bytes of a file; a terminal gets its lines as printable text."""
    if sys.stdout.isatty():
        text = data.decode(errors="backslashreplace")
        print_document("".join(f"{escaped(line)}\n" for line in text.removesuffix("\n").split("\n")))
    else:
        print_document(data)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `right` have numbers."""
    print_rich(FittedTable(columns, rows, right))


def make_console() -> Console:
    """A console on standard output, without colour and without a limit of its width on other files than terminals."""
    # FORCE_COLOR must not colour the lines that a program reads.
    return Console(highlight=False, force_terminal=None if sys.stdout.isatty() else False)


def quantity(number: int, noun: str, several: str = "") -> str:
    """A number with its noun, or with that of several: "1 update", "2,000 updates", "2 passes"."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def rough(number: int | None, is_exact: bool) -> str:
    """A number that may be an estimate; - for None."""
    return NO_VALUE if number is None else f"{'' if is_exact else 'about '}{number:,}"


def age(seconds: float | None) -> str:
    """An age in seconds, with a unit; - for None."""
    return NO_VALUE if seconds is None else f"{seconds:,.1f} s"


def with_levels(text: str, levels: Sequence[str]) -> str:
    """The text about a queue, with the names of the levels that it is also true of."""
    return f"{text}, together with its levels {', '.join(levels)}" if levels else text


def limits(max_seconds: float | None, max_bytes: int | None, when_full: str) -> str:
    """The limits of a queue's backlog in words: "600 s, 1,000 bytes, then raise"; empty without limits."""
    parts = [] if max_seconds is None else [f"{max_seconds:,g} s"]
    parts += [] if max_bytes is None else [quantity(max_bytes, "byte")]
    return ", ".join([*parts, f"then {when_full}"]) if parts else ""


def note(message: str) -> None:
    """Print a line on standard error, made printable; without effect if that has no reader or no room."""
    with suppress(OSError):
        typer.echo(printable(message), err=True)


class LiveDisplay(Progress):
    """A display that shows a line with the time since its start, or tables in its place."""

    tables: Any = None

    def show(self, shown: Any) -> None:
        """Show a line or a table; with None, the display stays as it is."""
        if isinstance(shown, str):
            self.update(self.task_ids[0], description=printable(shown))
        elif shown is not None:
            self.tables = shown

    def get_renderables(self) -> Iterable[Any]:
        """The table, or the line with the time."""
        yield self.make_tasks_table(self.tasks) if self.tables is None else self.tables


def live_display() -> LiveDisplay:
    """A display on standard error, disabled without a terminal."""
    display = _progress(LiveDisplay, counted=False)
    display.add_task("")
    return display


def progress(*, counted: bool = True) -> Progress:
    """A progress display on standard error, disabled without a terminal."""
    return _progress(Progress, counted=counted)


def _progress(kind: type[P], *, counted: bool) -> P:
    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    if counted:
        columns += [BarColumn(), MofNCompleteColumn()]
    return kind(
        *columns,
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
        # Otherwise results would be printed on standard error, too, and a pipe would lack them.
        redirect_stdout=sys.stdout.isatty(),
    )
