"""What the demos share: their store and other options, a seed that can be repeated, and progress."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from cq.cli.output import note, progress

DEMO_URL: Final = "embedded:cq-demo.db"
"""The store of the demos. Neither `$CQ_STORE` nor the settings file changes it: that may be a store in production."""

DemoStore = Annotated[
    str, typer.Option("--store", metavar="URL", help="The demo's store. $CQ_STORE does not count here.")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Draws the load, and who is killed; random if left out.")
]
KillEvery = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="A process is killed so often, on average.")
]


def drawn(seed: int | None) -> int:
    """The seed that was given, or a random one; it is told, so that the same can be run again."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    note(f"seed {seed}")
    return seed


@contextmanager
def shown(what: str) -> Iterator[Callable[[int, int], object]]:
    """Progress on a terminal; to be called with how many are done, and of how many."""
    with progress() as display:
        task = display.add_task(what)
        yield lambda done, total: display.update(task, completed=done, total=total)
