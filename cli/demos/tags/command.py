"""`cq demo tags`: a cloud of tags, counted by many web servers and combined by several collectors."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.demos.options import DEMO_URL, DemoStore, KillEvery, Seed, resolved_seed, shown_progress
from cq.cli.demos.words import demo
from cq.cli.shared.options import Json, make_store
from cq.cli.shared.output import as_word, note, print_json, print_table

if TYPE_CHECKING:
    from cq.cli.demos.tags.run import TagOutcome


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command("tags", epilog="Example: cq demo tags --seed 7")(tags)


def tags(
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="FILE", help="File of events to count. Default: generated events."),
    ] = None,
    number: Annotated[int, typer.Option(min=1, metavar="N", help="Number of events to generate.")] = 100_000,
    servers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of web server processes.")] = 3,
    collectors: Annotated[int, typer.Option(min=1, metavar="N", help="Number of collector processes.")] = 2,
    kill_every: KillEvery = 1.0,
    top: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Number of tags in the cloud.")
    ] = 20,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Keep a cloud of tags while processes are killed.

    Web servers gather increments in memory and commit many together. Collectors combine them and publish the cloud.
    Processes are killed by SIGKILL at random moments and started again. At the end all counts, the number of increments
    and the cloud must equal a recount, and the versions of the cloud must have been seen in ascending order; otherwise
    the exit status is 1. The queue `demo_tags` is deleted first.
    Afterwards `cq cloud demo_tags --store embedded:cq-demo.db` shows the cloud.

    A line of FILE says that an entity gets a tag or, with -1, loses it:
    {"entity": "article 17", "tag": "python", "by": 1}
    """
    from random import Random

    from cq.cli.demos.tags import events as tagevents
    from cq.cli.demos.tags import run as demo_of_tags

    db = make_store(store)
    given = tagevents.from_file(events) if events else None
    seed = resolved_seed(seed)
    rng = Random(seed)  # noqa: S311 - a load that can be repeated
    if given is None:
        given = tagevents.generated(number, rng)
    settings = demo_of_tags.TagSettings(servers, collectors, kill_every, top)
    with shown_progress("increments committed") as show:
        outcome = demo_of_tags.run(db, store, given, settings, rng, show)
    if json:
        print_json({"seed": seed, **_as_json(outcome)})
    else:
        _print(outcome)


def _as_json(outcome: TagOutcome) -> dict[str, Any]:
    return {
        **asdict(outcome),
        "seconds": round(outcome.seconds, 1),
        "cloud": [entry._asdict() for entry in outcome.cloud],
        "writes": {who: writes._asdict() for who, writes in outcome.writes.items()},
    }


def _print(outcome: TagOutcome) -> None:
    rows = ([as_word(entry.key), f"{entry.score:,}", entry.weight] for entry in outcome.cloud)
    print_table(["tag", "count", "weight"], rows, right=["count", "weight"])
    print_table(
        ["for an increment", "transactions", "writes"],
        (
            [who, *(f"{number / outcome.increments:.4f}" for number in writes)]
            for who, writes in outcome.writes.items()
        ),
        right=["transactions", "writes"],
    )
    note(
        f"{outcome.increments:,} increments of {outcome.tags:,} tags in {outcome.seconds:.1f} s, "
        f"{outcome.kills:,} processes killed, {outcome.versions:,} versions of the cloud: all as recounted; "
        f"merging by one server risks {outcome.at_risk:,} increments"
    )
