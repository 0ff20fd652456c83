"""Generator of reference pages: cli.md, docs/api, and tables in other pages.

Run it after a change of commands, keys or events, with cq installed: `python docs/reference.py`. Tests compare the
pages with its output.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from names import with_names  # beside this file

from cq.cli.main import command_line
from cq.cli.shared.help import examples, paragraphs
from cq.keys import queue as keys
from cq.observers.telemetry.events import EVENTS, FIELDS, Metric
from cq.verify.kinds import KINDS

DOCS = Path(__file__).parent
SHARED_BY = 7
"""An option that as many commands have, with the same text, is explained once."""
BEGIN, END = "<!-- begin: written by reference.py -->", "<!-- end -->"


def commands(command: Any, words: str = "cq") -> Iterator[tuple[str, Any]]:
    """Yield each command with its words on the command line, in groups, too; hidden ones excepted."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, each in command.commands.items():
        if not each.hidden:
            yield from commands(each, f"{words} {name}")


def cli() -> str:
    """Return the options of many commands, and a section for each command, from the texts of its `--help`."""
    found = dict(commands(typer.main.get_command(command_line())))
    uses = Counter(line for command in found.values() for line in option_lines(command))
    shared = {line: name for line, name in names_of_options(found).items() if uses[line] >= SHARED_BY}
    head = ["## Options of many commands", "", *shared, ""]
    return "\n".join(["\n".join(head), *(section(*each, shared) for each in found.items())])


def names_of_options(found: dict[str, Any]) -> dict[str, str]:
    """Return the names of the options of all commands, by their lines."""
    return {line: name for command in found.values() for line, name in option_lines(command).items()}


def option_lines(command: Any) -> dict[str, str]:
    """Return the lines that explain the options of a command, and their names."""
    return {
        f"- `{named(option)}`: {explained(option)}": option.opts[0]
        for option in parameters(command, "option")
    }


def section(words: str, command: Any, shared: dict[str, str]) -> str:
    """Return a command's usage, text, arguments, options and examples."""
    arguments, options = parameters(command, "argument"), option_lines(command)
    usage = " ".join([words, *map(placed, arguments), "[OPTIONS]"])
    text = "\n\n".join(paragraphs(command.help))
    lines = [f"## {words}", "", f"    {usage}", "", text, ""]
    lines += [f"- `{argument.metavar}`: {explained(argument)}" for argument in arguments]
    lines += [line for line in options if line not in shared]
    if also := ", ".join(f"`{name}`" for line, name in options.items() if line in shared):
        lines.append(f"- and {also}")
    return "\n".join([*lines, "", "```sh", *examples(command), "```", ""])


def parameters(command: Any, kind: str) -> list[Any]:
    """Return the arguments or options of a command that its help shows."""
    return [each for each in command.params if each.param_type_name == kind]


def placed(argument: Any) -> str:
    """Return an argument as in a usage line."""
    name = argument.metavar + (" ..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def named(option: Any) -> str:
    """Return an option with the name of its value."""
    forms = "/".join([", ".join(option.opts), *option.secondary_opts])
    return f"{forms} {option.metavar}" if option.metavar else forms


def explained(parameter: Any) -> str:
    """Return the help of a parameter, with its limits, its default and its environment variable."""
    default, notes = parameter.default, [*limits(parameter)]
    if parameter.param_type_name == "option":
        if parameter.secondary_opts and default:  # a pair of flags such as --wait/--no-wait
            notes.append(f"Default: `{parameter.opts[0]}`.")
        elif default and default is not True:
            notes.append(f"Default: `{default}`.")
        if parameter.envvar:
            notes.append(f"Environment: `{parameter.envvar}`.")
    return " ".join([parameter.help, *notes])


def limits(parameter: Any) -> Iterator[str]:
    """Yield the limits of a number."""
    # They belong to the parameter in newer versions of typer, to its type in older ones.
    least, most = (
        getattr(parameter, name, getattr(getattr(parameter, "type", None), name, None))
        for name in ("min", "max")
    )
    if least is not None and most is not None:
        yield f"From {least:,} to {most:,}."
    elif least is not None and least != 0:
        yield f"At least {least:,}."


def key_layout() -> str:
    """Return the docstring of cq/keys/queue.py, with its table of keys."""
    return f"```text\n{inspect.getdoc(keys)}\n```\n"


def telemetry() -> str:
    """Return tables of events, their fields, and the metrics that derive from them."""
    events = [
        [f"`{name}`", logging.getLevelName(kind.level).lower(), kind.description, ", ".join(kind.fields)]
        for name, kind in EVENTS.items()
    ]
    fields = [[f"`{name}`", unit, meaning] for name, (unit, meaning) in FIELDS.items()]
    metrics = [
        [
            f"`{exposed(metric)}`",
            metric.type,
            ", ".join(kind.labels),
            metric.description,
            name,
        ]
        for name, kind in EVENTS.items()
        for metric in kind.metrics
        if metric.description
    ]
    return "\n".join(
        [
            "### Events\n",
            *table(["event", "level", "when", "fields"], events),
            "\n### Fields of events\n",
            *table(["field", "unit", "meaning"], fields),
            "\n### Metrics\n",
            *table(["metric", "type", "label", "meaning", "event"], metrics),
            "",
        ]
    )


def kinds() -> str:
    """Return a table of the differences that a verification finds."""
    rows = [[f"`{kind}`", what, repair] for kind, (what, repair) in KINDS.items()]
    return "\n".join([*table(["kind", "what is wrong", "a repair"], rows), ""])


def exposed(metric: Metric) -> str:
    """Return a metric's name in the Prometheus format."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def page(name: str, written: str) -> str:
    """Return a page with `written` between its marks."""
    content = (DOCS / name).read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{written}\n{END}", content)


PAGES = {
    "cli.md": cli,
    "operate/verify.md": kinds,
    "understand/keys.md": key_layout,
    "operate/monitor.md": telemetry,
}


def written_pages() -> dict[Path, str]:
    """Return the pages that this program writes, with their present texts."""
    pages = {DOCS / name: page(name, write()) for name, write in PAGES.items()}
    return pages | {path: with_names(path.read_text()) for path in sorted((DOCS / "api").glob("*.md"))}


if __name__ == "__main__":
    for path, content in written_pages().items():
        path.write_text(content)
