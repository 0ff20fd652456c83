"""Options that several commands share, and the opening of stores."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from traceback import extract_tb
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

import typer
from typer.models import OptionInfo

import cq
from cq.app import App
from cq.cli.shared import completion
from cq.cli.shared.help import DECLARED
from cq.cli.shared.output import age, note, print_json, print_rich, say
from cq.cli.shared.table import FittedTable, ShownColumn
from cq.durations import seconds_in
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, InvalidUrl
from cq.store import OpenDatabase, close, copy_age

T = TypeVar("T")


def option(metavar: str, text: str, *names: str, default: Any = ..., **settings: Any) -> Any:
    """An option with a value: the name of the value, the help, the option's own names, and settings of typer.

    `default` is for the fields of an `option_set` only: without it an omitted option is None, and a flag False.
    """
    return typer.Option(default, *names, metavar=metavar, help=text, **settings)


def flag(names: str, text: str, default: Any = ...) -> Any:
    """An option without a value: its name, or a pair such as --wait/--no-wait, and the help."""
    return typer.Option(default, names, help=text)


def number_option(text: str, least: int = 1, default: Any = ...) -> Any:
    """An option with a number of at least `least`, and its help."""
    return option("NUMBER", text, default=default, min=least)


def argument(metavar: str, text: str, **settings: Any) -> Any:
    """An argument: its name, the help, and settings of typer; shells complete it as `completion.ARGUMENTS` says."""
    return typer.Argument(
        metavar=metavar, help=text, **{"autocompletion": completion.ARGUMENTS.get(metavar), **settings}
    )


@dataclass_transform(frozen_default=True)
def option_set(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass; a field that is declared by an option has the default of the option."""
    for name, declared in [*vars(kind).items()]:
        if isinstance(declared, OptionInfo):
            if declared.default is ...:
                declared.default = False if declared.metavar is None else None
            setattr(kind, name, field(default=declared.default, metadata={DECLARED: declared}))
    return dataclass(frozen=True)(kind)


Store = Annotated[
    str | None,
    option(
        "URL",
        "URL of the store: embedded:PATH, fdb: or fdb:/path/to/fdb.cluster. Default: embedded:cq.db.",
        "--store",
    ),
]
Json = Annotated[bool, flag("--json", "Print JSON instead of text.")]
AppPath = Annotated[
    str | None, option("MODULE:APP", "Import this cq.App with the code of combiners and observers.", "--app")
]
Queue = Annotated[str, argument("QUEUE", "Name of the queue.")]

WORDS: Final = "JSON, but strings, bytes (base64), decimals and datetimes without quotes."
"""The syntax of keys and updates on the command line."""

opened: Final = ExitStack()
"""Closes the stores that the command opened."""


def make_store(url: str | None) -> OpenDatabase:
    """The store, created if it does not exist; closed when the command ends."""
    return _open(url, create=True)


def _open(url: str | None, **options: bool) -> OpenDatabase:
    try:
        db = cq.open(url, **options)
    except InvalidUrl as error:
        raise InvalidUrl(f"{error}; `cq settings` shows its source") from None
    opened.callback(close, db)
    return db


@dataclass(frozen=True)
class Options:
    """The options that most commands have: the first parameter of their functions, see `CommandSet.command`."""

    store: Store = None
    json: Json = False

    @property
    def url(self) -> str | None:
        """The URL of the store that the command opens."""
        return self.store

    def make_store(self) -> OpenDatabase:
        """The store, created if it does not exist; closed when the command ends."""
        return make_store(self.url)

    def open_store(self) -> OpenDatabase:
        """The store, which must exist; closed when the command ends."""
        return _open(self.url, create=False)

    def read_store(self) -> OpenDatabase:
        """As `open_store`, for a command that only reads: read permission is enough. The age of a copy is noted."""
        db = _open(self.url, read_only=True)
        if (seconds := copy_age(db)) is not None:
            note(f"reading a copy of the store, {age(seconds)} old")
        return db

    def answer(self, text: str, **fields: Any) -> None:
        """Print the answer of the command: the text for people, or with `--json` the fields as a line of JSON."""
        if self.json:
            print_json(fields)
        else:
            say(text)

    def print_list(
        self,
        items: Iterable[Any],
        columns: Sequence[ShownColumn],
        empty: str = "",
        as_json: Callable[[Any], Mapping[str, Any]] = asdict,
    ) -> None:
        """Print a table with a row for each object, or `empty` instead of no rows; with `--json` a line for each."""
        if self.json:
            for each in items:
                print_json(as_json(each))
        elif (shown := list(items)) or not empty:
            print_rich(FittedTable.of(columns, shown))
        else:
            say(empty)

    def note_errors(self, errors: Iterable[tuple[str, str]]) -> None:
        """Note the errors of a printed table, a line for each (name, error) with one; with `--json` they are in it."""
        for name, error in [] if self.json else errors:
            if error:
                note(f"{name}: {error}")


@dataclass(frozen=True)
class AppOptions(Options):
    """The options of a command that may need code of the application, too."""

    app_path: AppPath = None

    def load_app(self) -> App | None:
        """The `cq.App` that MODULE:APP names; raises `InvalidConfiguration`.

        Only this option, or its setting, makes cq import code. Data in a store never make cq import code.
        """
        return None if self.app_path is None else _load_app(self.app_path)


def seconds_of(given: object) -> float:
    """The seconds in a duration such as 90s, 10m, 1h30m or 30d; a plain number is seconds.

    Raises `typer.BadParameter`.
    """
    text = str(given)  # a default is a number
    seconds = seconds_in(text)
    if seconds is None:
        raise typer.BadParameter(f"expected a duration such as 90s, 10m, 1h30m or 30d, got: {text!r}")
    return seconds


def duration_option(text: str, *names: str, least: float = 0, default: Any = ...) -> Any:
    """An option with a duration of at least `least` seconds, and its help; its value is the number of seconds."""

    def duration(given: object) -> float:
        seconds = seconds_of(given)
        if seconds < least:
            raise typer.BadParameter(f"expected a duration of at least {least:g} s, got: {str(given)!r}")
        return seconds

    return option("DURATION", text, *names, default=default, parser=duration)


def _line_of(error: BaseException) -> str:
    """The innermost line of code in the current folder that raised an error; empty without such a line."""
    folder, others = os.getcwd() + os.sep, (sys.prefix, __file__)
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.filename.startswith(folder) and not frame.filename.startswith(others):
            return f" ({frame.filename.removeprefix(folder)}, line {frame.lineno})"
    return ""


def _load_app(path: str) -> App:
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise InvalidConfiguration(f"expected --app to be MODULE:APP, got: {brief(path)}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app = getattr(importlib.import_module(module_name), attribute)
    # SystemExit: sys.exit(0) in the module must not end this command with status 0.
    except (Exception, SystemExit) as error:
        raise InvalidConfiguration(
            f"--app {brief(path)} cannot be imported: {type(error).__name__}: {error}{_line_of(error)}; `cq settings` "
            "shows who names it"
        ) from error
    if not isinstance(app, App):
        raise InvalidConfiguration(f"expected --app {brief(path)} to be a cq.App, got: {type(app).__name__}")
    return app
