"""`cq feed`: feeds of messages by receiver."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cq.cli.queues.manage import Yes, confirm
from cq.cli.shared.exit_status import DIFFERENT
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import (
    Json,
    Store,
    argument,
    make_store,
    open_store,
    option,
    read_store,
    seconds_of,
)
from cq.cli.shared.output import answer, is_read, note, print_json, print_line, print_table, print_words
from cq.encoding.json_values import to_json
from cq.errors import InvalidData
from cq.feeds.feed import Feed, FeedPage, Message
from cq.feeds.verify import verify_feed
from cq.observers.feeds.tasks import FeedStatus, read_all, read_status
from cq.store.transact import transact

Name = Annotated[str, argument("FEED", "Name of the feed.")]
Receiver = Annotated[str, argument("RECEIVER", "The receiver of the messages.")]
After = Annotated[
    str, option("ID", "Only messages after this id, as `cq feed read` prints it. Default: all messages.")
]

commands = CommandSet("feed", "Append and read messages by receiver, in commit order.")


@commands.command(
    "configure",
    examples=["cq feed configure chat --numbers", "cq feed configure chat --keep 30d --keep-last 10000"],
)
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
        option("DURATION", "Remove messages that are older than 90s, 10m, 2h, 30d ...; 0: remove none."),
    ] = None,
    keep_last: Annotated[
        int | None,
        option("NUMBER", "Keep only this number of the last messages of each receiver; 0: all.", min=0),
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Create a feed, or change its configuration.

    Omitted options keep their values.
    """
    if keep is not None and keep != "0" and keep.isdecimal():
        raise typer.BadParameter(
            f"expected --keep with a unit: {keep}d keeps days, and {keep}s keeps seconds"
        )
    seconds = None if keep is None else seconds_of(keep)
    db = make_store(store)
    Feed(name).configure(db, numbers=numbers, keep_seconds=seconds, keep_last=keep_last)
    _print_feeds([transact(db, lambda tr: read_status(tr.snapshot, name))], json)


@commands.command("list", examples=["cq feed list", "cq feed list --json"])
def list_(store: Store = None, json: Json = False) -> None:
    """List the feeds with their backlogs.

    For each feed: the number of groups with undelivered messages, and of receivers with messages without a number.
    """
    _print_feeds(transact(read_store(store), lambda tr: read_all(tr.snapshot)), json)


@commands.command(
    "append",
    examples=["cq feed append chat ann 'hello'", "cq feed append chat crew 'hello, all' --group"],
)
def append(
    name: Name,
    receiver: Annotated[str, argument("RECEIVER", "The receiver, or the group.")],
    message: Annotated[str, argument("TEXT", "Text of the message.")],
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
    answer(json, id_, id=id_)


@commands.command("read", examples=["cq feed read chat ann --limit 10", "cq feed read chat ann --json"])
def read(
    name: Name,
    receiver: Receiver,
    after: After = "",
    limit: Annotated[int, option("NUMBER", "Maximum number of messages.", min=1)] = 100,
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


@commands.command("follow", examples=["cq feed follow chat ann --json"])
def follow(
    name: Name, receiver: Receiver, after: After = "", store: Store = None, json: Json = False
) -> None:
    """Print the messages of a receiver and wait for new ones.

    The lines are those of `cq feed read`. ^C ends it.
    """
    db, position = read_store(store), _position(after)
    while is_read():
        page = Feed(name).wait(db, receiver, position)
        _print_page(page, json)
        position = page.position


@commands.command("verify", examples=["cq feed verify chat"])
def verify(name: Name, store: Store = None, json: Json = False) -> None:
    """Check a feed for inconsistent data.

    The feed may be in use. Checks the messages, their numbers and the notifications of workers. Each difference is a
    line: receiver or group, and description. The exit status is 4 if there are differences.
    """
    count = 0
    for difference in verify_feed(read_store(store), name):
        count += 1
        print_line(json, **difference._asdict())
    note(f"{count or 'no'} difference{'' if count == 1 else 's'}")
    if count:
        raise typer.Exit(DIFFERENT)


@commands.command("delete", examples=["cq feed delete chat --yes"])
def delete(name: Name, yes: Yes = False, store: Store = None, json: Json = False) -> None:
    """Delete a feed with all its messages, positions and groups."""
    confirm(f"delete feed {name!r} with all its messages?", yes)
    Feed(name).delete(open_store(store))
    answer(json, f"feed {name!r} is deleted", feed=name, done="deleted")


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
        if not is_read():
            return
        if json:
            print_json(_as_json(message))
        else:
            print_words(message.id.hex(), "" if message.group is None else message.group, message.body)


def _as_json(message: Message) -> dict[str, Any]:
    found = {"id": message.id.hex(), "sent": message.sent, "body": to_json(message.body)}
    if message.origin is not None:
        found |= {"group": to_json(message.group), "origin": message.origin.hex()}
    return found


def _print_feeds(statuses: list[FeedStatus], json: bool) -> None:
    rows = []
    for status in statuses:
        config, work = status.config, {"to_deliver": status.to_deliver, "to_number": status.to_number}
        if json:
            kept = {"keep_seconds": config.keep_seconds, "keep_last": config.keep_last}
            print_json({"feed": config.name, "numbers": config.numbers, **kept, **work})
        else:
            last = "" if config.keep_last is None else f"{config.keep_last:,}"
            kept_for = _duration(config.keep_seconds)
            numbers = "yes" if config.numbers else "no"
            rows.append([config.name, numbers, kept_for, last, *(f"{each:,}" for each in work.values())])
    if not json:
        columns = ("feed", "numbers", "keep", "keep last", "to deliver", "to number")
        print_table(columns, rows, right=columns[2:])


def _duration(seconds: float | None) -> str:
    """A duration in the format of `--keep`, in the largest unit without a fraction: "30d"; empty for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:,.0f}{unit}"
    return f"{seconds:,g}s"
