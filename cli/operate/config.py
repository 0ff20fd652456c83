"""`cq settings`: the settings of the command line, and the source of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import typer

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions
from cq.cli.shared.output import as_word
from cq.cli.shared.settings import CONFIG_ENV, SETTINGS, Setting, settings_file
from cq.cli.shared.table import NO_VALUE, ShownColumn
from cq.observers.links.spec import LISTED_ENV, TABLE_ENV
from cq.store import PREFIX_ENV, shown_url

_COLUMNS: Final = (
    ShownColumn("setting", lambda row: row[0], is_number=False),
    ShownColumn("value", lambda row: NO_VALUE if row[1] is None else as_word(row[1]), is_number=False),
    ShownColumn("from", lambda row: row[2], is_number=False),
)
commands = CommandSet()


@commands.command("settings", examples=["cq settings", "cq settings --json"])
def show_settings(options: AppOptions, ctx: typer.Context) -> None:
    """Show every setting, its value and its source.

    The source is a flag, an environment variable, a file, or the default. The URL of the reporting database is never
    shown, only whether it is set. With --json one line per setting.
    """
    path = settings_file()
    named = f"${CONFIG_ENV}" if os.environ.get(CONFIG_ENV) else "current folder"
    reporting = "set" if os.environ.get(TABLE_ENV) else "not set"
    rows: list[tuple[str, Any, str]] = [
        ("config", path, "default" if path is None else named),
        *_settings(ctx),
        _of_environment(ctx, "env_names", LISTED_ENV),
        _of_environment(ctx, "prefix", PREFIX_ENV),
        ("reporting_url", reporting, f"${TABLE_ENV}"),
    ]
    options.print_list(
        rows, _COLUMNS, as_json=lambda row: dict(zip(("setting", "value", "from"), row, strict=True))
    )


def _settings(ctx: typer.Context) -> Iterator[tuple[str, Any, str]]:
    """The name, value and source of each setting, as its command resolves it."""
    contexts: dict[str, Any] = {"": ctx}
    root: Any = ctx.find_root()
    for setting in SETTINGS:
        command = setting.command
        if command not in contexts:
            # Parse the other command without arguments: the result has the environment's and the file's values.
            contexts[command] = root.command.commands[command].make_context(command, [], parent=root)
        yield _resolved(setting, contexts[command])


def _resolved(setting: Setting, ctx: Any) -> tuple[str, Any, str]:
    name = next(option.name for option in ctx.command.params if setting.is_of(option))
    value = ctx.params[name]
    match ctx.get_parameter_source(name).name:
        case "COMMANDLINE":
            source = setting.flag
        case "ENVIRONMENT":
            source = f"${setting.variable}"
        case "DEFAULT_MAP":
            source = str(settings_file())
        case _:
            source = "default"
    if setting.name == "store" and value is not None:
        value = shown_url(value)  # the URL of the reporting database, if the two variables are exchanged
    return setting.name, setting.default if value is None else value, source


def _of_environment(ctx: typer.Context, name: str, variable: str) -> tuple[str, Any, str]:
    """The row of a setting that is no option; `ctx.meta` names the settings file if it has set the variable."""
    value = os.environ.get(variable) or None
    return name, value, "default" if value is None else ctx.meta.get(variable, f"${variable}")
