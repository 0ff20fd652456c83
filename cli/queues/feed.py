"""`cq feed`: feeds of messages by receiver."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cq.cli.queues.manage import Yes, confirm
from cq.cli.queues.verify import DIFFERENT
from cq.cli.shared.options import Json, Store, make_store, open_store, read_store, seconds_of
from cq.cli.shared.output import note, print_json, print_table, print_words, say
from cq.encoding.json_values import to_json
from cq.errors import InvalidData
from cq.feeds.feed import Feed, FeedPage, Message
from cq.feeds.verify import verify_feed
from cq.observers.feeds.tasks import FeedStatus, read_all, read_status
from cq.store.transact import transact

Name = Annotated[str, typer.Argument(metavar="FEED", help="Name of the feed.")]
Receiver = Annotated[str, typer.Argument(metavar="RECEIVER", help="The receiver of the messages.")]
After = Annotated[
    str,
    typer.Option(
        metavar="ID", help="Only messages after this id, as `cq feed read` prints it. Default: all messages."
    ),
]

feed = typer.Typer(help="Append and read messages by receiver, in commit order.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    feed.command(
        "configure",
        epilog="Examples: cq feed configure chat --numbers; cq feed configure chat --keep 30d --keep-last 10000",
    )(configure)
    feed.command("list", epilog="Examples: cq feed list; cq feed list --json")(list_)
    feed.command(
        "append",
        epilog="Examples: cq feed append chat ann 'hello'; cq feed append chat crew 'hello, all' --group",
    )(append)
    feed.command("read", epilog="Examples: cq feed read chat ann --limit 10; cq feed read chat ann --json")(
        read
    )
    feed.command("follow", epilog="Example: cq feed follow chat ann --json")(follow)
    feed.command("verify", epilog="Example: cq feed verify chat")(verify)
    feed.command("delete", epilog="Example: cq feed delete chat --yes")(delete)
    app.add_typer(feed, name="feed")


def configure(
    name: Name,
    numbers: Annotated[
        bool | None,
        typer.Option(
            "--numbers/--no-numbers",
            help="Number each receiver's messages 1, 2, 3 ...; cannot be switched off again.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Remove messages that are older than 90s, 10m, 2h, 30d ...; 0: remove none."
        ),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Remove all messages of a receiver except the last N; 0: remove none."
        ),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create a feed, or change its configuration.

    Omitted options keep their values.
    """
    seconds = None if keep is None else seconds_of(keep)
    db = make_store(store)
    Feed(name).configure(db, numbers=numbers, keep_seconds=seconds, keep_last=keep_last)
    _print_feeds([_described(transact(db, lambda tr: read_status(tr.snapshot, name)))], json)


def list_(store: Store = None, json: Json = False) -> None:
    """List the feeds with their backlogs.

    For each feed: the number of groups with undelivered messages, and of receivers with messages without a number.
    """
    statuses = transact(read_store(store), lambda tr: read_all(tr.snapshot))
    _print_feeds([_described(each) for each in statuses], json)


def append(
    name: Name,
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The receiver, or the group.")],
    message: Annotated[str, typer.Argument(metavar="TEXT", help="Text of the message.")],
    group: Annotated[
        bool, typer.Option("--group", help="RECEIVER is a group: all members receive the message.")
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Append a message to a feed, and print its id.

    It is for one receiver, or for all members of a group.
    """
    target = Feed(name)
    append_message = target.append_to_group if group else target.append
    end, versionstamp = transact(
        open_store(store), lambda tr: (append_message(tr, receiver, message), tr.get_versionstamp())
    )
    # The rest of the id is known before the commit; the versionstamp only after it.
    id_ = (versionstamp.value + end).hex()
    if json:
        print_json({"id": id_})
    else:
        say(id_)


def read(
    name: Name,
    receiver: Receiver,
    after: After = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of messages.")] = 100,
    store: Store = None,
    json: Json = False,
) -> None:
    """Print the messages of a receiver in order.

    Each message is a line: its id, its group or nothing, and its text. With --json one line per message.
    """
    position = _position(after)
    _print_page(
        transact(read_store(store), lambda tr: Feed(name).read(tr.snapshot, receiver, position, limit)), json
    )


def follow(
    name: Name, receiver: Receiver, after: After = "", store: Store = None, json: Json = False
) -> None:
    """Print the messages of a receiver and wait for new ones.

    The lines are those of `cq feed read`. ^C ends it.
    """
    db, position = read_store(store), _position(after)
    while True:
        page = Feed(name).wait(db, receiver, position)
        _print_page(page, json)
        position = page.position


def verify(name: Name, store: Store = None, json: Json = False) -> None:
    """Check a feed for inconsistent data.

    The feed may be in use. Checks the messages, their numbers and the notifications of workers. Each difference is a
    line: receiver or group, and description. The exit status is 4 if there are differences.
    """
    count = 0
    for difference in verify_feed(read_store(store), name):
        count += 1
        if json:
            print_json(difference._asdict())
        else:
            print_words(difference.whose, difference.what)
    note(f"{count or 'no'} difference{'' if count == 1 else 's'}")
    if count:
        raise typer.Exit(DIFFERENT)


def delete(name: Name, yes: Yes = False, store: Store = None, json: Json = False) -> None:
    """Delete a feed with all its messages, positions and groups."""
    confirm(f"delete feed {name!r} with all its messages?", yes)
    Feed(name).delete(open_store(store))
    if json:
        print_json({"feed": name, "done": "deleted"})
    else:
        say(f"feed {name!r} is deleted")


def _position(after: str) -> bytes:
    try:
        return bytes.fromhex(after)
    except ValueError:
        raise InvalidData(
            f"expected the id of a message as `cq feed read` prints it, got: {after!r}"
        ) from None


def _print_page(page: FeedPage, json: bool) -> None:
    if page.missed:
        note("messages after that id have been removed: the feed does not keep them longer")
    for message in page.messages:
        if json:
            print_json(_as_json(message))
        else:
            print_words(message.id.hex(), "" if message.group is None else message.group, message.body)
    sys.stdout.flush()  # readers of a pipe must see each page at once


def _as_json(message: Message) -> dict[str, Any]:
    found = {"id": message.id.hex(), "sent": message.sent, "body": to_json(message.body)}
    if message.origin is not None:
        found |= {"group": to_json(message.group), "origin": message.origin.hex()}
    return found


def _described(status: FeedStatus) -> dict[str, Any]:
    config = status.config
    return {
        "feed": config.name,
        "numbers": config.numbers,
        "keep_seconds": config.keep_seconds,
        "keep_last": config.keep_last,
        "to_deliver": status.to_deliver,
        "to_number": status.to_number,
    }


def _print_feeds(feeds: list[dict[str, Any]], json: bool) -> None:
    if json:
        for each in feeds:
            print_json(each)
        return
    columns = ("feed", "numbers", "keep", "keep last", "to deliver", "to number")
    rows = [
        [
            _duration(value) if what == "keep_seconds" and value is not None else _shown(value)
            for what, value in each.items()
        ]
        for each in feeds
    ]
    print_table(columns, rows, right=columns[2:])


def _duration(seconds: float) -> str:
    """A duration in the format of `--keep`, in the largest unit without a fraction: "30d"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:,.0f}{unit}"
    return f"{seconds:,g}s"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else value
