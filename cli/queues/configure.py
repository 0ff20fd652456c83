"""`cq configure`, `cq pause` and `cq resume`: the configuration of queues."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import cq
from cq.admin.configure import requested
from cq.app import App
from cq.cli.shared.options import AppPath, Json, Queue, Store, load_app, make_store, open_store, seconds_of
from cq.cli.shared.output import print_json, say
from cq.observers.builtin import change_checked
from cq.observers.export.spec import DEFAULT_ENV, export_spec
from cq.observers.feeds.observer import feed_spec
from cq.observers.forward.observer import DEFAULT_ENV as FORWARD_ENV
from cq.observers.forward.observer import forward_spec
from cq.observers.top.index import DEFAULT_N
from cq.observers.top.index import top as top_spec


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "configure",
        cls=_ConfigureCommand,
        epilog="Examples: cq configure words --key str --value int --combiner sum; "
        "cq configure words --top --export word_counts",
    )(configure)
    app.command(
        "pause",
        epilog="Examples: cq pause words --reason 'observers are being moved'; cq pause words --for 10m",
    )(pause)
    app.command("resume", epilog="Example: cq resume words")(resume)


def configure(
    queue: Queue,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the keys: str (default), int, bytes, or a tuple such as '(str, int)'.",
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the values: int (default), float, decimal, str, bytes, bool, list, dict, set, "
            "datetime or any.",
        ),
    ] = None,
    combiner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Combiner: sum (default), minimum, maximum, last, first, union, counter, or one of --app.",
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of buckets, 1 to 4,096. Default: 1 in an embedded store, 8 on a cluster.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="[N]", help="Keep a top, and publish a cloud of the N highest values (default 100)."
        ),
    ] = None,
    no_top: Annotated[bool, typer.Option("--no-top", help="Remove the top and the cloud.")] = False,
    export: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Export all values into this table of a SQL database.")
    ] = None,
    reporting_url_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the URL of that database.")
    ] = DEFAULT_ENV,
    priority: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Share of the workers' time relative to other queues, 1 to 100 (default 10)."
        ),
    ] = None,
    no_export: Annotated[bool, typer.Option("--no-export", help="Stop exporting; the table stays.")] = False,
    feed: Annotated[
        str | None,
        typer.Option(
            metavar="FEED", help="Append all changes to this feed; the receiver is the name of the queue."
        ),
    ] = None,
    no_feed: Annotated[bool, typer.Option("--no-feed", help="Stop appending changes to a feed.")] = False,
    forward: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Forward all changes into this queue of another store."),
    ] = None,
    forward_url_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable with the URL of that store.")
    ] = FORWARD_ENV,
    no_forward: Annotated[
        bool, typer.Option("--no-forward", help="Stop forwarding; the receiving queue stays.")
    ] = False,
    audit: Annotated[
        bool | None,
        typer.Option(
            "--audit/--no-audit",
            help="Keep sums for a check that no update is lost or repeated. Only for sums of int.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="WIDTH/SLICE",
            help="Count only updates of the last WIDTH seconds, removed in slices of SLICE seconds: 600/10. "
            "Only for sums of int.",
        ),
    ] = None,
    rebuild: Annotated[
        str | None,
        typer.Option(
            metavar="OBSERVER",
            help="Report all values to this observer again: top, export, or an observer of --app.",
        ),
    ] = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create a queue, or change its configuration.

    Omitted options keep their values; the defaults are for a new queue. The types, combiner, buckets and
    window of an existing queue cannot be changed here. A top, an export, a forward and a feed can be added to a queue
    with values: workers first report all values to them. An audit can be added, too: this command then reads the whole
    queue.
    """
    for option, value_given, is_removed in (
        ("top", top, no_top),
        ("export", export, no_export),
        ("feed", feed, no_feed),
        ("forward", forward, no_forward),
    ):
        if value_given is not None and is_removed:
            raise typer.BadParameter(f"give either --{option} or --no-{option}")
    app = load_app(app_path) or App()
    wanted = {"key": key, "value": value, "combiner": combiner, "buckets": buckets, "audit": audit}
    wanted["window"] = window
    db = make_store(store) if rebuild is None else open_store(store)
    specs = (
        None if top is None else top_spec(top),
        None if export is None else export_spec(export, url_env=reporting_url_env),
        None if feed is None else feed_spec(feed),
        None if forward is None else forward_spec(forward, url_env=forward_url_env),
    )
    removed = {"top": no_top, "export": no_export, "feed": no_feed, "forward": no_forward}
    changes = requested(
        **app.settings(queue, {name: given for name, given in wanted.items() if given is not None}),
        put=[spec for spec in specs if spec is not None],
        removed=[observer for observer, is_removed in removed.items() if is_removed],
        rebuilt=rebuild,
        priority=priority,
        creates=rebuild is None,
    )
    config = change_checked(db, queue, changes)
    if json:
        print_json({"queue": queue, **config.settings()})
    else:
        say(f"queue {queue!r}: {_described(config.settings())}")


class _ConfigureCommand(TyperCommand):
    """Accepts `--top` without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default number inserted after a bare `--top`."""
        if "--top" in args:
            following = args.index("--top") + 1
            if following == len(args) or not args[following].lstrip("+").isdigit():
                args = [*args[:following], str(DEFAULT_N), *args[following:]]
        return super().parse_args(ctx, args)


def pause(
    queue: Queue,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason, which `cq status` and workers show.")
    ] = "by hand",
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Duration of the pause: 90s, 10m, 2h ... Default: until `cq resume`.",
        ),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Stop workers from combining a queue.

    Adds and reads continue.
    """
    seconds = None if duration is None else seconds_of(duration)
    cq.pause(open_store(store), queue, reason, seconds=seconds)
    _print_pause(queue, json, paused=True)


def resume(queue: Queue, store: Store = None, json: Json = False) -> None:
    """Let workers combine a queue again."""
    cq.resume(open_store(store), queue)
    _print_pause(queue, json, paused=False)


def _print_pause(queue: str, json: bool, *, paused: bool) -> None:
    if json:
        print_json({"queue": queue, "paused": paused})
    else:
        say(f"queue {queue!r} is {'paused' if paused else 'active'}")


def _described(settings: dict[str, object]) -> str:
    shown = {**settings, "audit": "on" if settings["audit"] else [], "window": settings["window"] or []}
    return ", ".join(
        f"{what} {', '.join(value) if isinstance(value, list) else value}"
        for what, value in shown.items()
        if value != []
    )
