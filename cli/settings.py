"""Settings: which options can also be given in the environment and in a file, and reading the file.

A flag is stronger than the environment, that is stronger than the file, and that is stronger than the default. All of
this is typer's own: the environment by an option's `envvar`, the file by `default_map`. The library reads none of it
but `$CQ_STORE`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperGroup

from cq.cli.settingsfile import InvalidSettings, read_settings, settings_file
from cq.observers.exportspec import DEFAULT_ENV
from cq.plaintext import printable
from cq.store import DEFAULT_URL

_TYPES: Final = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "an array",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that the environment and the file can give.

    Attributes:
        name: `worker.app` is the option `--app` of `cq worker`, `$CQ_WORKER_APP`, and `app` in the table `worker` of
            the file. Without a dot it is the option of all commands that have it.
        type: what the file must have; the option's own checks follow.
        default: to be shown when the option itself has none.
    """

    name: str
    type: type
    default: object = None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"CQ_{self.name.upper().replace('.', '_')}"

    @property
    def command(self) -> str:
        """The command that has it; empty for all of them."""
        return self.name.rpartition(".")[0]

    @property
    def flag(self) -> str:
        """The option."""
        return f"--{self.name.rpartition('.')[2].replace('_', '-')}"


SETTINGS: Final = (
    Setting("store", str, default=DEFAULT_URL),
    Setting("worker.app", str),
    Setting("worker.processes", int),
    Setting("worker.concurrency", int),
    Setting("worker.grace", float),
    Setting("worker.metrics", str),
    Setting("worker.log", str),
)


_USAGE_ERROR: Any = typer.BadParameter.__base__  # of click, or of typer's copy of it
_APART: Final = frozenset({"bench", "demo"})
"""Commands and groups that take no settings: they must not change the store that an application uses."""


class Commands(TyperGroup):
    """All commands; options that are settings know their environment variables."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for setting in SETTINGS:
            for _, option in options_of(setting, self):
                option.envvar = setting.variable

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """The context of the group."""
        with _printable_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's arguments, and run it."""
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Make errors of usage printable: a pattern of the shell gives names of files that anybody has made."""
    try:
        yield
    except _USAGE_ERROR as error:
        error.message = printable(error.message)
        raise


def options_of(
    setting: Setting, command: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The options that a setting is, with the words of their commands."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from options_of(setting, each, (*path, name))
    elif (not setting.command and path[0] not in _APART) or setting.command == ".".join(path):
        yield from ((path, option) for option in command.params if setting.flag in option.opts)


def use_file(ctx: typer.Context) -> None:
    """Let the file, if there is one, say what options are that are not given; raises `InvalidSettings`."""
    path = settings_file()
    if path is None:
        return
    defaults: dict[str, Any] = {}
    for setting, value in _read(path):
        options = list(options_of(setting, ctx.command))
        _check(ctx, path, setting, options[0][1], value)
        for words, option in options:
            table = defaults
            for word in words:
                table = table.setdefault(word, {})
            table[option.name] = value
    ctx.default_map = defaults


def file_of(ctx: typer.Context, option: str) -> str | None:
    """The file that the command has this option from; None if it comes from elsewhere."""
    source = ctx.get_parameter_source(option)
    return settings_file() if source is not None and source.name == "DEFAULT_MAP" else None


def _read(path: str) -> Iterator[tuple[Setting, Any]]:
    """What a file sets."""
    known = {setting.name: setting for setting in SETTINGS}
    for name, value in _named(_parsed(path)):
        if "reporting" in name.lower() or (isinstance(value, str) and "://" in value):
            raise InvalidSettings(
                f"{path}: {name!r} looks like the URL of a reporting database, which may have a password and is not "
                f"taken from a file: set ${DEFAULT_ENV} in the environment, and remove it here"
            )
        if name not in known:
            raise InvalidSettings(f"{path}: unknown key {name!r}: expected one of {', '.join(known)}")
        yield known[name], value


def _parsed(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_settings(path).decode())
    except InvalidSettings:
        raise
    except (ValueError, RecursionError) as error:  # also of what is no UTF-8
        raise InvalidSettings(f"{path} is no TOML: {error}") from error


def _named(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a table has, by the names of settings: those in the tables of commands with a dot."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict) and any(setting.name.startswith(f"{name}.") for setting in SETTINGS):
            yield from _named(value, f"{name}.")
        else:
            yield name, value


def _check(ctx: typer.Context, path: str, setting: Setting, option: Any, value: Any) -> None:
    """Raise unless the option takes the value; of another type it is not shown: it may be anything."""
    accepted = (int, float) if setting.type is float else setting.type
    if not isinstance(value, accepted) or (isinstance(value, bool) and setting.type is not bool):
        got = _TYPES.get(type(value), "a date or a time")
        raise InvalidSettings(f"{path}: expected {setting.name} to be {_TYPES[setting.type]}, got {got}")
    try:
        option.process_value(ctx, value)
    except typer.BadParameter as error:
        raise InvalidSettings(f"{path}: {setting.name}: {error.message}") from None
