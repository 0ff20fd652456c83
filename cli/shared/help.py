"""The help of commands: plain text, with colours on a terminal, and examples that can be copied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import wraps
from typing import Any, Final, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from cq.cli.shared.exit_status import WRONG_USAGE
from cq.cli.shared.output import make_console, print_document

_HIGHLIGHTS: Final = {
    r"(?m)^[A-Z][a-z ]+:": "bold",
    r"`[^`]+`": "cyan",
    r"(?<![\w-])--?[a-z][a-z-]*": "cyan",
    r"\$CQ_\w+": "cyan",
}


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


class HelpPage:
    """The help of commands and groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write_page(self, ctx, formatter)

    def get_help(self, ctx: Any) -> str:
        """The help, coloured on a terminal."""
        return _coloured(super().get_help(ctx))  # type: ignore[misc]  # of a command


class HelpCommand(HelpPage, TyperCommand):
    """A command with the help of this module."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command in its usage line."""
        return ["[OPTIONS]", *map(placed, parameters(self, "argument"))]


class HelpGroup(HelpPage, TyperGroup):
    """A group of commands with the help of this module."""

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


def _write_page(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the usage, the text, the parameters or commands, and the examples."""
    formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    for paragraph in paragraphs(command.help or ""):
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraph)
    arguments = [(placed(each), explained(each, ctx)) for each in parameters(command, "argument")]
    options = [(named(each), explained(each, ctx)) for each in parameters(command, "option", ctx)]
    panels = command.panels() if isinstance(command, HelpGroup) else []
    for title, rows in [*panels, ("Arguments", arguments), ("Options", options)]:
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if shown := examples(command):
        # Never broken: a terminal wraps a long line, and copies it as one line.
        formatter.write("\n".join(["", "Examples:", *(f"  {line}" for line in shown), ""]))


def _coloured(page: str) -> str:
    """A page of help in colours, if standard output is a terminal."""
    console, shown = make_console(), Text(page)
    for pattern, style in _HIGHLIGHTS.items():
        shown.highlight_regex(pattern, style)
    with console.capture() as captured:
        console.print(shown, soft_wrap=True, end="")
    return captured.get()


def parameters(command: Any, kind: str, ctx: Any = None) -> list[Any]:
    """The arguments or options of a command that its help shows; with a context `--help` is one of them."""
    found = command.params if ctx is None else command.get_params(ctx)
    return [each for each in found if each.param_type_name == kind and not getattr(each, "hidden", False)]


def examples(command: Any) -> list[str]:
    """The examples of a command, one per line."""
    return (command.epilog or "").split("\n") if command.epilog else []


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring, each in one line."""
    return [" ".join(each.split()) for each in inspect.cleandoc(text).split("\n\n")]


def placed(argument: Any) -> str:
    """An argument as in a usage line."""
    name = argument.metavar + (" ..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def named(option: Any) -> str:
    """An option with the name of its value."""
    forms = "/".join([", ".join(option.opts), *option.secondary_opts])
    return f"{forms} {option.metavar}" if option.metavar else forms


def explained(parameter: Any, ctx: Any = None, mark: str = "") -> str:
    """The help of a parameter, with its limits, its default and its environment variable, each between marks."""
    default = parameter.default if ctx is None else parameter.get_default(ctx, call=False)
    notes = [*_limits(parameter)]
    if parameter.param_type_name == "option":
        if parameter.secondary_opts and default:  # a pair of flags such as --wait/--no-wait
            notes.append(f"Default: {mark}{parameter.opts[0]}{mark}.")
        elif default and default is not True:
            notes.append(f"Default: {mark}{default}{mark}.")
        if parameter.envvar:
            notes.append(f"Environment: {mark}{parameter.envvar}{mark}.")
    return " ".join([parameter.help, *notes])


def _limits(parameter: Any) -> Iterator[str]:
    """The limits of a number."""
    # They belong to the parameter in newer versions of typer, to its type in older ones.
    least, most = (
        getattr(parameter, name, getattr(getattr(parameter, "type", None), name, None))
        for name in ("min", "max")
    )
    if least is not None and most is not None:
        yield f"From {least:,} to {most:,}."
    elif least is not None and least != 0:
        yield f"At least {least:,}."
