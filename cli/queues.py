"""`cq configure`, `cq status`, `cq pause`, `cq resume`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import cq
from cq.app import App
from cq.cli.options import AppPath, Json, Queue, Store, load_app, open_store
from cq.cli.output import print_json, print_table
from cq.config import DEFAULT_BUCKETS
from cq.status import QueueStatus, status


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("configure", epilog="Example: cq configure words --key str --value int --combiner sum")(
        configure
    )
    app.command("status", epilog="Example: cq status words --json")(show_status)
    app.command("pause", epilog="Example: cq pause words --reason 'observers are being moved'")(pause)
    app.command("resume", epilog="Example: cq resume words")(resume)


def configure(
    queue: Queue,
    key: Annotated[
        str, typer.Option(metavar="TYPE", help="str, int, bytes, or a tuple such as '(str, int)'.")
    ] = "str",
    value: Annotated[
        str,
        typer.Option(
            metavar="TYPE", help="int, float, decimal, str, bytes, bool, list, dict, set, datetime or any."
        ),
    ] = "int",
    combiner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="sum, minimum, maximum, last, first, union or counter; else the app's."
        ),
    ] = None,
    buckets: Annotated[
        int, typer.Option(metavar="N", help="1 to 4,096; as many passes can run at once.")
    ] = DEFAULT_BUCKETS,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Store a queue's configuration. The same settings again change nothing, others are refused."""
    app = load_app(app_path) or App()
    settings = {"key": key, "value": value, "buckets": buckets}
    if combiner is not None:
        settings["combiner"] = combiner
    config = app.configure(open_store(store), queue, **settings)
    if json:
        print_json({"queue": queue, **config.settings()})
    else:
        typer.echo(f"queue {queue!r}: {_described(config.settings())}")


def show_status(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="The queue; all of them if left out.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show what waits in the queues: buckets with work, rows and bytes queued, the age of the oldest update.

    With --json a line for each queue.
    """
    found = status(open_store(store), queue)
    if json:
        for each in found:
            print_json(asdict(each))
        return
    if not found:
        typer.echo("no queue is configured in this store: begin with `cq configure QUEUE`")
        return
    columns = ["queue", "buckets", "waiting", "rows", "bytes", "oldest", "set aside", "state"]
    print_table(columns, map(_row, found), right=columns[1:-1])


def pause(
    queue: Queue,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Shown by `cq status` and to workers.")
    ] = "by hand",
    store: Store = None,
    json: Json = False,
) -> None:
    """Keep workers from combining a queue; adds and reads go on."""
    cq.pause(open_store(store), queue, reason)
    _tell(queue, json, paused=True)


def resume(queue: Queue, store: Store = None, json: Json = False) -> None:
    """Let workers combine a queue again."""
    cq.resume(open_store(store), queue)
    _tell(queue, json, paused=False)


def _tell(queue: str, json: bool, *, paused: bool) -> None:
    if json:
        print_json({"queue": queue, "paused": paused})
    else:
        typer.echo(f"queue {queue!r} is {'paused' if paused else 'active'}")


def _row(each: QueueStatus) -> list[object]:
    about = "" if each.exact else "about "
    return [
        each.name,
        each.settings["buckets"],
        each.waiting_buckets,
        f"{about}{each.rows:,}",
        f"{about}{each.bytes:,}",
        "-" if each.oldest_seconds is None else f"{each.oldest_seconds:,.1f} s",
        f"{each.aside:,}",
        f"paused: {each.reason}" if each.paused else "active",
    ]


def _described(settings: dict[str, object]) -> str:
    shown = {what: value for what, value in settings.items() if value != []}
    return ", ".join(
        f"{what} {', '.join(value) if isinstance(value, list) else value}" for what, value in shown.items()
    )
