"""All commands of `cq`, and how tests run each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

from cq.cli.main import command_line


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command and its words on the command line, groups included, hidden names not."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        if not each.hidden:
            yield from commands(each, (*path, name))


CQ: Any = typer.main.get_command(command_line())
COMMANDS = dict(commands(CQ))


def parse(words: Sequence[str]) -> Any:
    """The context of a command with these words after `cq`; raises a usage error for wrong ones."""
    command, left = CQ, list(words)
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    return command.make_context("cq", left)


LITTLE = ("--seconds", "0.1", "--repetitions", "1", "--adders", "1", "--threads", "2", "--keys", "500")
"""Options for a benchmark that takes a moment."""
LONG = {
    "ask",
    "bench",
    "demo cells",
    "demo chat",
    "demo live",
    "demo stock",
    "demo tags",
    "demo visits",
    "demo words",
    "web",
    "worker",
}
"""Commands that run for seconds; their help is tested."""
RUNS = {
    "add": "add words b=1",
    "aside drop": "aside drop words --yes",
    "aside list": "aside list words",
    "aside retry": "aside retry words",
    "aside show": "aside show words",
    "cells add": "cells add c2 embedded:c2.db",
    "cells delete": "cells delete ada --yes",
    "cells drain": "cells drain c1",
    "cells fill": "cells fill newest",
    "cells find": "cells find login:ada",
    "cells limit": "cells limit c1 5",
    "cells list": "cells list",
    "cells load": "cells load c1 0.5",
    "cells move": "cells move ada c1",
    "cells names": "cells names ada login:ada",
    "cells place": "cells place grace",
    "cells rebalance": "cells rebalance",
    "cells resume": "cells resume",
    "cloud": "cloud words",
    "configure": "configure new --combiner sum",
    "copy": "copy copy.db",
    "delete": "delete words --yes",
    "doctor": "doctor",
    "drain": "drain words",
    "feed append": "feed append chat ann hello",
    "feed configure": "feed configure chat",
    "feed delete": "feed delete chat --yes",
    "feed follow": "feed follow chat ann",
    "feed list": "feed list",
    "feed read": "feed read chat ann",
    "feed verify": "feed verify chat",
    "get": "get words a",
    "health": "health",
    "items": "items words",
    "limit": "limit words",
    "link aside": "link aside words",
    "link check": "link check words",
    "link init": "link init words",
    "link list": "link list",
    "link pause": "link pause words",
    "link rebase": "link rebase words",
    "link rebuild": "link rebuild words",
    "link remove": "link remove words --yes",
    "link resume": "link resume words",
    "link verify": "link verify words --wait 0",
    "outbox aside": "outbox aside words",
    "outbox init": "outbox init words",
    "outbox remove": "outbox remove words",
    "outbox retry": "outbox retry words",
    "pause": "pause words",
    "purge": "purge words --yes --no-wait",
    "rebucket": "rebucket words --buckets 2 --no-wait",
    "resume": "resume words",
    "series": "series hits a",
    "settings": "settings",
    "status": "status",
    "top": "top words",
    "verify": "verify words --wait 0",
}
