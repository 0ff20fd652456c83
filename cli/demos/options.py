"""Parts that the demos share: their store and other options, a repeatable seed, and progress."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from cq.cli.shared.output import note, progress

DEMO_URL: Final = "embedded:cq-demo.db"
"""The store of the demos. `$CQ_STORE` and the settings file do not change it: they may name a production store."""

DemoStore = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", help="URL of the demo's store; $CQ_STORE and cq.toml have no effect."
    ),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Seed of the load and of the kills. Default: random.")
]
KillEvery = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Average time between two kills of a process.")
]


def resolved_seed(seed: int | None) -> int:
    """The given seed, or a random one; printed, so that the run can be repeated."""
    seed = secrets.randbelow(2**32) if seed is None else seed
    note(f"seed {seed}")
    return seed


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], object]]:
    """Show progress on a terminal; yields a function of the number done and the total."""
    with progress() as display:
        task = display.add_task(what)
        yield lambda done, total: display.update(task, completed=done, total=total)
