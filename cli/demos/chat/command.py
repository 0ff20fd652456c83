"""`cq demo chat`: a chat with killed processes and one receiver under a flood of messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.demos.options import DEMO_URL, DemoStore, KillEvery, Seed, resolved_seed, shown_progress
from cq.cli.demos.words import demo
from cq.cli.shared.options import Json, make_store
from cq.cli.shared.output import note, print_json, print_table

if TYPE_CHECKING:
    from cq.cli.demos.chat.run import ChatOutcome


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command("chat", epilog="Example: cq demo chat --seed 7")(chat)


def chat(
    users: Annotated[
        int, typer.Option(min=2, metavar="N", help="Number of users, each with two terminals.")
    ] = 16,
    groups: Annotated[int, typer.Option(min=1, metavar="N", help="Number of groups.")] = 4,
    messages: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of the senders' actions: messages, joins and leaves."),
    ] = 800,
    flood: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Number of additional messages to one user, sent as fast as possible."
        ),
    ] = 10_000,
    senders: Annotated[int, typer.Option(min=1, metavar="N", help="Number of processes that send.")] = 2,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Number of worker processes.")] = 2,
    kill_every: KillEvery = 1.0,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Run a chat while processes are killed and one user is flooded.

    Senders write to users and groups, users join and leave groups, and terminals are offline at times. Processes are
    killed by SIGKILL at random moments and started again. At the end every user must have exactly the messages of a
    recount, in order and with numbers without a gap, and every terminal must have seen each message once and in order;
    otherwise the exit status is 1. The output shows how long messages took to reach an online terminal. The
    feed `demo_chat` is deleted first. Afterwards `cq feed read demo_chat 'user 1' --store embedded:cq-demo.db` shows
    messages.
    """
    from random import Random

    from cq.cli.demos.chat import run as demo_of_chat

    db = make_store(store)
    seed = resolved_seed(seed)
    settings = demo_of_chat.ChatSettings(users, groups, messages, flood, senders, workers, kill_every)
    rng = Random(seed)  # noqa: S311 - a load that can be repeated
    with shown_progress("sent") as show:
        outcome = demo_of_chat.run(db, store, settings, rng, show)
    if json:
        print_json({"seed": seed, **_as_json(outcome)})
    else:
        _print(outcome)


def _as_json(outcome: ChatOutcome) -> dict[str, Any]:
    delays = {kind: delay._asdict() for kind, delay in outcome.delays.items()}
    return {**asdict(outcome), "seconds": round(outcome.seconds, 1), "delays": delays}


def _print(outcome: ChatOutcome) -> None:
    rows = (
        [kind, f"{delay.number:,}", f"{delay.p50:,.0f} ms", f"{delay.p99:,.0f} ms"]
        for kind, delay in outcome.delays.items()
    )
    print_table(["from sender to terminal", "messages", "p50", "p99"], rows, right=["messages", "p50", "p99"])
    note(
        f"{outcome.messages:,} messages sent in {outcome.seconds:.1f} s, {outcome.received:,} received, "
        f"{outcome.seen:,} seen by terminals, {outcome.kills:,} processes killed: all as recounted"
    )
