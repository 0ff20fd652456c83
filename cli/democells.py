"""`cq demo cells`: users in many stores, moved while they are written for."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cq.cli.demo import demo
from cq.cli.demoing import KillEvery, Seed, drawn, shown
from cq.cli.options import Json
from cq.cli.output import note, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command("cells", epilog="Example: cq demo cells --seed 7")(cells)


def cells(
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Writes of each writer.")] = 1_000,
    users: Annotated[int, typer.Option(min=1, metavar="N", help="How many users.")] = 40,
    stores: Annotated[int, typer.Option("--cells", min=1, metavar="N", help="How many cells.")] = 3,
    writers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that write.")] = 2,
    movers: Annotated[int, typer.Option(min=0, metavar="N", help="Processes that move users.")] = 2,
    kill_every: KillEvery = 2.0,
    seed: Seed = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Keep the stores in this folder; a temporary one if left out."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="For the directory and the totals; a file in the folder if left out."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Move users between cells while they are written for and the processes are killed, and recount all of it.

    Each user's data lie in one of several stores. Writers write, movers move, and a worker for each cell forwards what
    it has counted to the store that has the directory. Any of them is killed at any moment, by SIGKILL, and started
    again. In the end each user must be in just one cell, with all that was written, under ids without gaps, and the
    totals must be the sum over all users; else the exit status is 1.
    """
    from random import Random

    from cq.observers.demos import cells as demo_of_cells
    from cq.observers.demos.cellroles import Load

    seed = drawn(seed)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(TemporaryDirectory(prefix="cq-demo-")))
        place.mkdir(parents=True, exist_ok=True)
        url = store or f"embedded:{place.resolve() / 'directory.db'}"
        os.environ[demo_of_cells.URL_ENV] = url
        told = stack.enter_context(shown("writes done"))
        outcome = demo_of_cells.run(
            url,
            place.resolve(),
            Load(seed, users, number),
            demo_of_cells.Settings(stores, writers, movers, kill_every=kill_every),
            Random(seed),  # noqa: S311 - kills that can be repeated
            told,
        )
    if json:
        print_json({"seed": seed, **asdict(outcome), "seconds": round(outcome.seconds, 1)})
        return
    print_table(["cell", "users"], [[name, count] for name, count in outcome.cells.items()], right=["users"])
    note(
        f"{outcome.writes:,} writes of {outcome.users:,} users, who have moved {outcome.moves:,} times, in "
        f"{outcome.seconds:.1f} s, with {outcome.kills:,} processes killed: all as recounted"
    )
