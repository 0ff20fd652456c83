"""The help of commands, with examples that can be copied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, Final, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from cq.cli.shared.exit_status import WRONG_USAGE
from cq.cli.shared.output import print_document


class CommandSet(typer.Typer):
    """The commands of a module; with a name and a text they form a group, such as `cq feed`."""

    def __init__(self, name: str | None = None, text: str | None = None) -> None:
        super().__init__(name=name, help=text, cls=HelpGroup)

    def command(  # type: ignore[override]
        self, name: str, *, examples: Sequence[str], cls: type[TyperCommand] | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a function as a command, with examples of its use: a line each.

        The function's first parameter is a dataclass, such as `Options`: each of its fields becomes an option, after
         the options of the function itself and, for a derived class, before those of its base class.
        """
        register = super().command(name, cls=cls or HelpCommand, epilog="\n".join(examples))
        return lambda function: register(_expanded(function))


DECLARED: Final = "declared"
"""In the metadata of a dataclass's field: the option that it is."""


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of its first parameter, a dataclass, as parameters at its end."""
    signature = inspect.signature(function, eval_str=True)
    first, *own = signature.parameters.values()
    options: Any = first.annotation
    hints = get_type_hints(options, include_extras=True)
    # A derived class may give a field another default, at another place.
    names = list(dict.fromkeys(name for each in options.__mro__ for name in inspect.get_annotations(each)))
    defaults = {each.name: each.metadata.get(DECLARED, each.default) for each in fields(options)}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    expanded = [
        inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in names
    ]

    @wraps(function)
    def run(**given: Any) -> Any:
        return function(options(**{name: given.pop(name) for name in names}), **given)

    run.__signature__ = signature.replace(parameters=[*own, *expanded])  # type: ignore[attr-defined]
    return run


class WithExamples:
    """The help of commands and groups with their examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples: never broken, as a terminal wraps a long line, and copies it as one line."""
        if shown := examples(self):
            formatter.write("\n".join(["", "Examples:", *(f"  {line}" for line in shown), ""]))


class HelpCommand(WithExamples, TyperCommand):
    """A command with examples in its help, and without types of Python beside the names of its arguments."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for each in self.params:
            if isinstance(each, TyperArgument):
                each.display_type_rich = lambda ctx: None  # type: ignore[method-assign]


class HelpGroup(WithExamples, TyperGroup):
    """A group of commands; its help has their whole summaries."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help and end with status 2."""
        if not args and not ctx.resilient_parsing:
            print_document(f"{ctx.get_help()}\n")
            ctx.exit(WRONG_USAGE)
        return super().parse_args(ctx, args)

    def panels(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The sections of the help with commands: their titles, and each command with its summary."""
        shown = [(name, each) for name, each in self.commands.items() if not each.hidden]
        return [("Commands", [(name, paragraphs(each.help or "")[0]) for name, each in shown])]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections with commands."""
        for title, rows in self.panels():
            with formatter.section(title):
                formatter.write_dl(rows)


def examples(command: Any) -> list[str]:
    """The examples of a command, one per line."""
    return (command.epilog or "").split("\n") if command.epilog else []


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring, each in one line."""
    return [" ".join(each.split()) for each in inspect.cleandoc(text).split("\n\n")]
