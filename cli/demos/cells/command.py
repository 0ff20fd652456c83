"""`cq demo cells`: users in many stores, who are moved while applications write their data."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from cq.cli.demos.options import KillEvery, Seed, resolved_seed, shown_progress
from cq.cli.demos.words import demo
from cq.cli.shared.options import Json
from cq.cli.shared.output import note, print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command("cells", epilog="Example: cq demo cells --seed 7")(cells)


def cells(
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Number of writes of each writer.")] = 1_000,
    users: Annotated[int, typer.Option(min=1, metavar="N", help="Number of users.")] = 40,
    stores: Annotated[int, typer.Option("--cells", min=1, metavar="N", help="Number of cells.")] = 3,
    writers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes that write.")] = 2,
    movers: Annotated[int, typer.Option(min=0, metavar="N", help="Number of processes that move users.")] = 2,
    kill_every: KillEvery = 2.0,
    seed: Seed = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Folder for the stores, which are kept. Default: a temporary folder."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Store for the directory and the totals. Default: a file in the folder."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Move users between cells while processes write and are killed.

    The data of each user are in one of several stores. Writers write data of users, movers move users, and a worker per
    cell forwards its counts to the store with the directory. Processes are killed by SIGKILL at random moments and
    started again. At the end each user must be in exactly one cell, with all written data, under ids without gaps, and
    the totals must be the sum over all users; otherwise the exit status is 1.
    """
    from random import Random

    from cq.cli.demos.cells import run as demo_of_cells
    from cq.cli.demos.cells.roles import WriteLoad

    seed = resolved_seed(seed)
    with ExitStack() as stack:
        base = folder or Path(stack.enter_context(TemporaryDirectory(prefix="cq-demo-")))
        base.mkdir(parents=True, exist_ok=True)
        url = store or f"embedded:{base.resolve() / 'directory.db'}"
        os.environ[demo_of_cells.URL_ENV] = url
        show = stack.enter_context(shown_progress("writes done"))
        outcome = demo_of_cells.run(
            url,
            base.resolve(),
            WriteLoad(seed, users, number),
            demo_of_cells.CellSettings(stores, writers, movers, kill_every=kill_every),
            Random(seed),  # noqa: S311 - kills that can be repeated
            show,
        )
    if json:
        print_json({"seed": seed, **asdict(outcome), "seconds": round(outcome.seconds, 1)})
        return
    print_table(["cell", "users"], [[name, count] for name, count in outcome.cells.items()], right=["users"])
    note(
        f"{outcome.writes:,} writes of {outcome.users:,} users, who moved {outcome.moves:,} times, in "
        f"{outcome.seconds:.1f} s, with {outcome.kills:,} processes killed: all as recounted"
    )
