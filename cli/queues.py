"""`cq configure`, `cq pause`, `cq resume`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import cq
from cq.app import App
from cq.cli.options import AppPath, Json, Queue, Store, load_app, make_store, open_store, seconds_of
from cq.cli.output import print_json, say
from cq.observers.builtin import put_built_in
from cq.observers.exportspec import DEFAULT_ENV, export_spec
from cq.observers.feedobserver import feed_spec
from cq.observers.forwardspec import DEFAULT_ENV as FORWARD_ENV
from cq.observers.forwardspec import forward_spec
from cq.observers.top import DEFAULT_N
from cq.observers.top import top as top_spec


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "configure",
        cls=_Configure,
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
            metavar="TYPE", help="str (for a new queue), int, bytes, or a tuple such as '(str, int)'."
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="int (for a new queue), float, decimal, str, bytes, bool, list, dict, set, datetime or any.",
        ),
    ] = None,
    combiner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sum (for a new queue), minimum, maximum, last, first, union or counter; else the app's.",
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="1 to 4,096 (for a new queue 1 in an embedded store, 8 on a cluster)."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="[N]", help="Keep a top, and publish a cloud of the N (100) highest values."),
    ] = None,
    no_top: Annotated[
        bool, typer.Option("--no-top", help="Keep no top, and forget the one there is.")
    ] = False,
    export: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Export all values into this table of a SQL database.")
    ] = None,
    reporting_url_env: Annotated[
        str, typer.Option(metavar="NAME", help="The environment variable with that database's URL.")
    ] = DEFAULT_ENV,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", help="Share of the workers' time beside other queues: 1 to 100 (10)."),
    ] = None,
    no_export: Annotated[bool, typer.Option("--no-export", help="Export no more; the table stays.")] = False,
    feed: Annotated[
        str | None,
        typer.Option(metavar="FEED", help="Append all changes to this feed, for the queue's name."),
    ] = None,
    no_feed: Annotated[bool, typer.Option("--no-feed", help="Append changes to no feed any more.")] = False,
    forward: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Forward all changes into this queue of another store."),
    ] = None,
    forward_url_env: Annotated[
        str, typer.Option(metavar="NAME", help="The environment variable with that store's URL.")
    ] = FORWARD_ENV,
    no_forward: Annotated[
        bool, typer.Option("--no-forward", help="Forward no more; the receiving queue stays.")
    ] = False,
    audit: Annotated[
        bool | None,
        typer.Option(
            "--audit/--no-audit",
            help="Keep sums by which it can be checked that no update is lost or repeated; int sums only.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="WIDTH/SLICE",
            help="Take out again what was added so many seconds ago, in slices: 600/10. Int sums only.",
        ),
    ] = None,
    rebuild: Annotated[
        str | None,
        typer.Option(
            metavar="OBSERVER", help="Report all values to this observer again: top, export or your own."
        ),
    ] = None,
    app_path: AppPath = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Store a queue's configuration. What is left out stays as it is.

    Types, combiner and buckets of a queue cannot be changed, nor whether it has a window. A top, an export, a
    forward and a feed can be added to a queue that holds values: workers tell them of all values first. An audit can,
    too: this command then reads all that the queue holds.
    """
    for what, given, not_wanted in (
        ("top", top, no_top),
        ("export", export, no_export),
        ("feed", feed, no_feed),
        ("forward", forward, no_forward),
    ):
        if given is not None and not_wanted:
            raise typer.BadParameter(f"--no-{what} goes without --{what}")
    app = load_app(app_path) or App()
    asked = {"key": key, "value": value, "combiner": combiner, "buckets": buckets, "audit": audit}
    asked["window"] = window
    db = make_store(store) if rebuild is None else open_store(store)
    if rebuild is not None:  # first: a queue that does not exist must not be created
        cq.rebuild_observer(db, queue, rebuild)
    config = app.configure(db, queue, **{what: given for what, given in asked.items() if given is not None})
    for spec in (
        None if top is None else top_spec(top),
        None if export is None else export_spec(export, url_env=reporting_url_env),
        None if feed is None else feed_spec(feed),
        None if forward is None else forward_spec(forward, url_env=forward_url_env),
    ):
        if spec is not None:
            config = put_built_in(db, config, spec)
    if priority is not None:
        cq.prioritize(db, queue, priority)
    not_wanted_any_more = {"top": no_top, "export": no_export, "feed": no_feed, "forward": no_forward}
    for observer, is_unwanted in not_wanted_any_more.items():
        if is_unwanted:
            config = cq.remove_observer(db, queue, observer)
    if json:
        print_json({"queue": queue, **config.settings()})
    else:
        say(f"queue {queue!r}: {_described(config.settings())}")


class _Configure(TyperCommand):
    """Lets `--top` stand without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the number that was left out."""
        if "--top" in args:
            behind = args.index("--top") + 1
            if behind == len(args) or not args[behind].lstrip("+").isdigit():
                args = [*args[:behind], str(DEFAULT_N), *args[behind:]]
        return super().parse_args(ctx, args)


def pause(
    queue: Queue,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Shown by `cq status` and to workers.")
    ] = "by hand",
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Resume by itself after 90s, 10m, 2h ...")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Keep workers from combining a queue; adds and reads go on."""
    seconds = None if duration is None else seconds_of(duration)
    cq.pause(open_store(store), queue, reason, seconds=seconds)
    _tell(queue, json, paused=True)


def resume(queue: Queue, store: Store = None, json: Json = False) -> None:
    """Let workers combine a queue again."""
    cq.resume(open_store(store), queue)
    _tell(queue, json, paused=False)


def _tell(queue: str, json: bool, *, paused: bool) -> None:
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
