"""`cq demo chat`: a chat whose processes are killed, with a receiver that is flooded."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cq.cli.demo import demo
from cq.cli.demoing import DEMO_URL, DemoStore, KillEvery, Seed, drawn, shown
from cq.cli.options import Json, make_store
from cq.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from cq.observers.demos.chat import Outcome


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    demo.command("chat", epilog="Example: cq demo chat --seed 7")(chat)


def chat(
    users: Annotated[int, typer.Option(min=2, metavar="N", help="Users, each with two terminals.")] = 16,
    groups: Annotated[int, typer.Option(min=1, metavar="N", help="Groups.")] = 4,
    messages: Annotated[
        int, typer.Option(min=1, metavar="N", help="What the senders do: messages, joins and leaves.")
    ] = 800,
    flood: Annotated[
        int, typer.Option(min=0, metavar="N", help="Messages to one user beside, as fast as possible.")
    ] = 10_000,
    senders: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that send.")] = 2,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes of workers.")] = 2,
    kill_every: KillEvery = 1.0,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Run a chat while its processes are killed and one user is flooded, and compare it with a recount.

    Senders write to users and groups, users join and leave, and terminals are offline at times. Any process is killed
    at any moment, by SIGKILL, and started again. In the end every user must have just the messages that a recount
    gives, in order and with numbers without a gap, and every terminal must have seen each of them once and in order;
    else the exit status is 1. Shown is how long messages took until a terminal had them that was online. The feed is
    `demo_chat`, which is deleted first; `cq feed read demo_chat 'user 1' --store embedded:cq-demo.db` then shows
    messages.
    """
    from random import Random

    from cq.observers.demos import chat as demo_of_chat

    db = make_store(store)
    seed = drawn(seed)
    settings = demo_of_chat.Settings(users, groups, messages, flood, senders, workers, kill_every)
    rng = Random(seed)  # noqa: S311 - a load that can be repeated
    with shown("sent") as told:
        outcome = demo_of_chat.run(db, store, settings, rng, told)
    if json:
        print_json({"seed": seed, **_as_json(outcome)})
    else:
        _print(outcome)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    delays = {kind: delay._asdict() for kind, delay in outcome.delays.items()}
    return {**asdict(outcome), "seconds": round(outcome.seconds, 1), "delays": delays}


def _print(outcome: Outcome) -> None:
    rows = (
        [kind, f"{delay.number:,}", f"{delay.p50:,.0f} ms", f"{delay.p99:,.0f} ms"]
        for kind, delay in outcome.delays.items()
    )
    print_table(["from sender to terminal", "messages", "p50", "p99"], rows, right=["messages", "p50", "p99"])
    note(
        f"{outcome.messages:,} messages sent in {outcome.seconds:.1f} s, {outcome.received:,} received, "
        f"{outcome.seen:,} seen by terminals, {outcome.kills:,} processes killed: all as recounted"
    )
