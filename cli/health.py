"""`cq health`."""

from __future__ import annotations

from typing import Annotated

import typer

from cq.cli.options import Json, Store, read_store
from cq.cli.output import print_json, say
from cq.observers.health import MAX_AGE_SECONDS, health


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health", epilog="Examples: cq health; cq health --max-age 300 --here --json")(show_health)


def show_health(
    max_age: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long updates may wait in a queue.")
    ] = MAX_AGE_SECONDS,
    here: Annotated[bool, typer.Option("--here", help="A worker must live on this host.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Say whether the store answers, a worker lives, and no update waits for too long in a queue that is not paused.

    Exit status 1 when something is wrong, with a line for each thing that is. With --json one line.
    """
    problems = health(read_store(store), max_age=max_age, here=here)
    if json:
        print_json({"healthy": not problems, "problems": problems})
    else:
        for line in problems or ["healthy"]:
            say(line)
    if problems:
        raise typer.Exit(1)
