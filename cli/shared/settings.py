"""Settings: options that the environment and a file can give, too.

A flag has priority over the environment, the environment over the file, and the file over the default. Typer implements
this: the environment by an option's `envvar`, the file by `default_map`. The library itself reads only `$CQ_STORE`.

Settings name code that commands import, and the store of every command. So the file is read only if no user except its
reader and root could have written it: a file that another user has put into the current folder, for example a shared
one, must not be read. A file that `$CQ_CONFIG` names is the choice of the caller: its owner is not checked.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import typer

from cq.cli.shared import streams
from cq.cli.shared.help import HelpGroup
from cq.cli.shared.late_commands import PANELS, LateCommands
from cq.errors import InvalidConfiguration
from cq.observers.links.spec import LISTED_ENV, TABLE_ENV
from cq.plain_text import printable
from cq.store import DEFAULT_URL

CONFIG_ENV: Final = "CQ_CONFIG"
"""The environment variable with the path of another file."""
DEFAULT_FILE: Final = "cq.toml"
"""The default file, in the current folder."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that the environment and the file can give, too.

    Attributes:
        name: `worker.grace` is the option `--grace` of `cq worker`, `$CQ_WORKER_GRACE`, and `grace` in the table
            `worker` of the file. `worker.queues` is its argument.
        default: shown by `cq settings` if the option itself has no default.
        is_shared: whether it is the option of all commands that have one of this name.
    """

    name: str
    default: object = None
    is_shared: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"CQ_{self.name.upper().replace('.', '_')}"

    @property
    def command(self) -> str:
        """The command of the option; empty if no command of this name has it."""
        return self.name.rpartition(".")[0]

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name.rpartition('.')[2].replace('_', '-')}"

    def is_of(self, option: Any) -> bool:
        """Whether this is its option, or its argument, of a command."""
        return self.flag in option.opts or (
            option.param_type_name == "argument" and self.flag == f"--{option.name}"
        )


SETTINGS: Final = (
    Setting("store", default=DEFAULT_URL, is_shared=True),
    # Commands that read, configure or verify a queue need the code that its workers have.
    Setting("app", is_shared=True),
    Setting("worker.queues"),
    Setting("worker.processes"),
    Setting("worker.concurrency"),
    Setting("worker.grace"),
    Setting("worker.metrics"),
    Setting("worker.otel", default=False),
    Setting("worker.log"),
)
ENV_NAMES: Final = Setting("env_names")
"""Names of environment variables that settings in the store may use; no option."""


_USAGE_ERROR: Any = typer.BadParameter.__base__  # the class of click, or of the copy of click in typer
_CHECKS: Final = "worker"
"""The command that has all settings."""
_WITHOUT_SETTINGS: Final = frozenset({"bench", "demo"})
"""Commands and groups without settings: they must not change the store of an application."""


class Commands(HelpGroup):
    """The group of all commands; it gives the options in `SETTINGS` their environment variables."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LateCommands(_use_environment)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, for completion."""
        return [*self.commands]

    def panels(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The sections of the help with commands, without an import of their modules."""
        return [
            (title, [(name, text) for name, (_, text) in panel.items()]) for title, panel in PANELS.items()
        ]

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """The context of the group."""
        with _handled_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's arguments, and run it."""
        with _handled_errors():
            return super().invoke(ctx)


def _use_environment(name: str, command: Any) -> None:
    """Give the options in `SETTINGS` of a command or group their environment variables."""
    for setting in SETTINGS:
        for _, option in options_of(setting, command, (name,)):
            option.envvar = setting.variable


@contextmanager
def _handled_errors() -> Iterator[None]:
    """Make usage errors printable, and end quietly if the reader of the output has ended.

    Printable: a shell pattern can put file names of other users into the arguments.
    """
    try:
        yield
    except BrokenPipeError as error:  # of the help; commands print by functions that expect it
        if streams.has_lost_reader():
            streams.discard()
            raise typer.Exit from None
        # Another pipe or connection, which must not end the command quietly, as typer would.
        raise OSError(f"a connection has ended: {error}") from error
    except _USAGE_ERROR as error:
        error.message = printable(error.message)
        raise


def options_of(
    setting: Setting, command: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The options of a setting, each with the words of its command."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from options_of(setting, each, (*path, name))
    elif path[0] not in _WITHOUT_SETTINGS if setting.is_shared else setting.command == ".".join(path):
        yield from ((path, option) for option in command.params if setting.is_of(option))


def use_file(ctx: typer.Context) -> None:
    """Use the settings file, if any, for omitted options; raises `InvalidSettings`."""
    path = settings_file()
    if path is None:
        return
    defaults: dict[str, Any] = {}
    commands: Any = ctx.command
    # The command that runs, and the one that checks the values of its settings.
    needed = {name: commands.commands[name] for name in (str(ctx.invoked_subcommand), _CHECKS)}
    for setting, stored in _read(path):
        if setting is ENV_NAMES:
            _list_names(ctx, path, stored)
            continue
        options = [found for name, each in needed.items() for found in options_of(setting, each, (name,))]
        # Several values may be one text, as in the environment.
        is_split = isinstance(stored, str) and options[0][1].nargs == -1
        value = stored.split() if is_split else stored
        _check(ctx, path, setting, options[0][1], value)
        for words, option in options:
            table = defaults
            for word in words:
                table = table.setdefault(word, {})
            table[option.name] = value
    ctx.default_map = defaults


def _list_names(ctx: typer.Context, path: str, names: object) -> None:
    """Let this process and its children read the variables of these names, unless the environment lists others."""
    if not isinstance(names, list) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise InvalidSettings(f"{path}: expected env_names to be an array of names of environment variables")
    if not os.environ.get(LISTED_ENV):
        os.environ[LISTED_ENV] = ",".join(names)
        ctx.meta[LISTED_ENV] = path


def file_of(ctx: typer.Context, option: str) -> str | None:
    """The path of the settings file if it gave this option; None for another source."""
    source = ctx.get_parameter_source(option)
    return settings_file() if source is not None and source.name == "DEFAULT_MAP" else None


def store_in_file() -> str | None:
    """The store that the settings file names, if any; raises `InvalidSettings`."""
    path = settings_file()
    found = () if path is None else _read(path)
    return next((value for setting, value in found if setting.name == "store"), None)


def _read(path: str) -> Iterator[tuple[Setting, Any]]:
    """The settings and values of a file; a number is as text, as in the environment."""
    known = {setting.name: setting for setting in (*SETTINGS, ENV_NAMES)}
    for name, value in _named(_parsed(path)):
        if "reporting" in name.lower() or "://" in str(value):
            # Not in the message: the value, which may have a password.
            raise InvalidSettings(
                f"{path}: {name!r} looks like the URL of a reporting database, which may have a password and is not "
                f"read from a file: set ${TABLE_ENV} in the environment, and remove it here"
            )
        if name not in known:
            raise InvalidSettings(f"{path}: unknown key {name!r}: expected one of {', '.join(known)}")
        yield known[name], value if isinstance(value, bool | list) else str(value)


def _parsed(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_settings(path).decode())
    except InvalidSettings:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError, too
        raise InvalidSettings(f"{path} is not valid TOML: {error}") from error


def _named(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table by the names of settings; a dot joins the table of a command and a key."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict) and any(setting.name.startswith(f"{name}.") for setting in SETTINGS):
            yield from _named(value, f"{name}.")
        else:
            yield name, value


def _check(ctx: typer.Context, path: str, setting: Setting, option: Any, value: Any) -> None:
    """Raise unless the option accepts the value."""
    try:
        option.process_value(ctx, value)
    except typer.BadParameter as error:
        raise InvalidSettings(f"{path}: {setting.name}: {error.message}") from None


# The file
_ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class InvalidSettings(InvalidConfiguration):
    """The settings file is invalid; the message names the file and the key."""


def settings_file() -> str | None:
    """The path of the settings file, None if there is no file."""
    if named := os.environ.get(CONFIG_ENV):
        return os.path.expanduser(named)
    return DEFAULT_FILE if os.path.lexists(DEFAULT_FILE) else None


def read_settings(path: str) -> bytes:
    """The content of the file; raises `InvalidSettings` if it cannot be read or cannot be trusted."""
    try:
        with open(path, "rb") as file:
            if not os.environ.get(CONFIG_ENV):
                # Of the open file: the path may lead to another file by now. The owner of a symbolic link decides which
                # file it leads to: check both owners.
                _check_trusted(path, os.fstat(file.fileno()), os.lstat(path).st_uid)
            return file.read()
    except OSError as error:
        raise InvalidSettings(
            f"cannot read the settings in {path}: {error.strerror}; correct that, or set ${CONFIG_ENV} to another file"
        ) from error


def _check_trusted(path: str, status: os.stat_result, link_owner: int) -> None:
    """Raise `InvalidSettings` unless only the user and root can write the file."""
    for owner in (status.st_uid, link_owner):
        if owner not in (os.geteuid(), _ROOT):
            raise InvalidSettings(
                f"{path} in the current folder belongs to another user (uid {owner}), and settings can name code: if "
                f"you trust it, set ${CONFIG_ENV}={path}"
            )
    if status.st_mode & _OTHERS_WRITE:
        raise InvalidSettings(
            f"{path} in the current folder can be written by other users, and settings can name code: "
            f"run `chmod go-w {path}`"
        )
