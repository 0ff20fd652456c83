"""Writes what repeats the code: cli.md, and tables in key-layout.md, operations.md and howto/verify.md.

Run it after a change of commands, keys or events, with cq installed: `python docs/reference.py`. Tests compare the
pages with what it would write.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from cq.cli.main import app
from cq.keys import queue as keys
from cq.observers.telemetry.events import EVENTS, FIELDS, Metric
from cq.verify.kinds import KINDS

DOCS = Path(__file__).parent
BEGIN, END = "<!-- begin: written by reference.py -->", "<!-- end -->"


def commands(command: Any, words: str = "cq") -> Iterator[tuple[str, Any]]:
    """Each command and its words on the command line, groups included, hidden names not."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, each in command.commands.items():
        if not each.hidden:
            yield from commands(each, f"{words} {name}")


def cli() -> str:
    """A section for each command, made from what its `--help` is made of."""
    return "\n".join(section(words, command) for words, command in commands(typer.main.get_command(app)))


def section(words: str, command: Any) -> str:
    """A command's usage, text, arguments and options, and examples."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join([words, *map(placed, arguments), "[OPTIONS]"])
    examples = command.epilog.partition(":")[2].strip().split("; ")
    lines = [f"## {words}", "", f"    {usage}", "", paragraphs(command.help), ""]
    lines += [f"- `{argument.metavar}`: {argument.help}" for argument in arguments]
    lines += [f"- `{named(option)}`: {option.help}{default(option)}{variable(option)}" for option in options]
    return "\n".join([*lines, "", "```sh", *examples, "```", ""])


def placed(argument: Any) -> str:
    """An argument as a usage line shows it."""
    name = argument.metavar + (" ..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def named(option: Any) -> str:
    """An option with what it takes."""
    forms = "/".join([option.opts[0], *option.secondary_opts])
    return f"{forms} {option.metavar}" if option.metavar else forms


def default(option: Any) -> str:
    """The default of an option, unless it is None, False or empty."""
    if option.secondary_opts and option.default:  # a pair of flags such as --wait/--no-wait
        return f" Default: `{option.opts[0]}`."
    return f" Default: `{option.default}`." if option.default else ""


def variable(option: Any) -> str:
    """The environment variable of an option that is a setting."""
    return f" Environment: `{option.envvar}`." if option.envvar else ""


def paragraphs(text: str) -> str:
    """The text of a docstring, a line for each paragraph."""
    return "\n\n".join(" ".join(each.split()) for each in inspect.cleandoc(text).split("\n\n"))


def key_layout() -> str:
    """The table of keys at the head of cq/keys/queue.py, and what stands around it."""
    return f"```text\n{inspect.getdoc(keys)}\n```\n"


def telemetry() -> str:
    """Tables of events, of their fields, and of the metrics made from them."""
    events = [
        [f"`{name}`", logging.getLevelName(kind.level).lower(), kind.description, ", ".join(kind.fields)]
        for name, kind in EVENTS.items()
    ]
    fields = [[f"`{name}`", unit, meaning] for name, (unit, meaning) in FIELDS.items()]
    metrics = [
        [
            f"`{exposed(metric)}`",
            metric.type,
            "queue" if "queue" in kind.fields else "",
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
    """A table of the differences that a verification finds."""
    rows = [[f"`{kind}`", what, repair] for kind, (what, repair) in KINDS.items()]
    return "\n".join([*table(["kind", "what is wrong", "a repair"], rows), ""])


def exposed(metric: Metric) -> str:
    """A metric's name as it is scraped."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def page(name: str, written: str) -> str:
    """A page with what is written between its marks."""
    content = (DOCS / name).read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{written}\n{END}", content)


PAGES = {
    "cli.md": cli,
    "howto/verify.md": kinds,
    "key-layout.md": key_layout,
    "operations.md": telemetry,
}

if __name__ == "__main__":
    for file, write in PAGES.items():
        (DOCS / file).write_text(page(file, write()))
