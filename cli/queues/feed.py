"""`cq feed`: feeds of messages by receiver."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from cq.cli.queues.manage import Yes, confirm
from cq.cli.shared.exit_status import DIFFERENT
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Options, argument, duration_option, flag, option
from cq.cli.shared.output import is_read, note, print_json, print_line, print_words
from cq.cli.shared.table import ShownColumn
from cq.durations import duration
from cq.encoding.json_values import to_json
from cq.errors import InvalidData
from cq.feeds.config import read_feed_config
from cq.feeds.feed import Feed, FeedPage, Message
from cq.feeds.verify import verify_feed
from cq.observers.feeds.tasks import FeedStatus, read_all, read_status
from cq.store.transact import transact

Name = Annotated[str, argument("FEED", "Name of the feed.")]
Receiver = Annotated[str, argument("RECEIVER", "The receiver of the messages.")]
After = Annotated[
    str, option("ID", "Only messages after this id, as `cq feed read` prints it. Default: all messages.")
]

_COLUMNS: Final = (
    ShownColumn("feed", lambda each: each.config.name, is_number=False),
    ShownColumn("numbers", lambda each: "yes" if each.config.numbers else "no", is_number=False),
    ShownColumn("keep", lambda each: duration(each.config.keep_seconds) if each.config.keep_seconds else ""),
    ShownColumn("keep last", lambda each: f"{each.config.keep_last:,}" if each.config.keep_last else ""),
    ShownColumn("to deliver", lambda each: f"{each.to_deliver:,}"),
    ShownColumn("to number", lambda each: f"{each.to_number:,}"),
)
commands = CommandSet("feed", "Append and read messages by receiver, in commit order.")


@commands.command(
    "configure",
    examples=["cq feed configure chat --numbers", "cq feed configure chat --keep 30d --keep-last 10000"],
)
def configure(
    options: Options,
    name: Name,
    numbers: Annotated[
        bool | None,
        flag(
            "--numbers/--no-numbers",
            "Number each receiver's messages 1, 2, 3 ...; cannot be switched off again.",
        ),
    ] = None,
    unread: Annotated[
        bool | None,
        flag("--unread/--no-unread", "Count each terminal's unread messages; cannot be switched off again."),
    ] = None,
    keep: Annotated[
        float | None,
        duration_option("Remove messages that are older than 90s, 10m, 2h, 30d ...; 0: remove none."),
    ] = None,
    keep_last: Annotated[
        int | None,
        option("NUMBER", "Keep only this number of the last messages of each receiver; 0: all.", min=0),
    ] = None,
) -> None:
    """Create a feed, or change its configuration.

    Omitted options keep their values.
    """
    db = options.make_store()
    Feed(name).configure(db, numbers=numbers, unread=unread, keep=keep, keep_last=keep_last)
    _print_feeds(options, [transact(db, lambda tr: read_status(tr.snapshot, name))])


@commands.command("list", examples=["cq feed list", "cq feed list --json"])
def list_(options: Options) -> None:
    """List the feeds with their backlogs.

    For each feed: the number of groups with undelivered messages, and of receivers with messages without a number.
    """
    _print_feeds(options, transact(options.read_store(), lambda tr: read_all(tr.snapshot)))


@commands.command(
    "append", examples=["cq feed append chat ann 'hello'", "cq feed append chat crew 'hello, all' --group"]
)
def append(
    options: Options,
    name: Name,
    receiver: Annotated[str, argument("RECEIVER", "The receiver, or the group.")],
    message: Annotated[str, argument("TEXT", "Text of the message.")],
    group: Annotated[bool, flag("--group", "RECEIVER is a group: all members receive the message.")] = False,
) -> None:
    """Append a message to a feed, and print its id.

    It is for one receiver, or for all members of a group.
    """
    id_ = Feed(name).append_now(options.open_store(), receiver, message, to_group=group).hex()
    options.answer(id_, id=id_)


@commands.command("read", examples=["cq feed read chat ann --limit 10", "cq feed read chat ann --json"])
def read(
    options: Options,
    name: Name,
    receiver: Receiver,
    after: After = "",
    limit: Annotated[int, option("NUMBER", "Maximum number of messages.", min=1)] = 100,
) -> None:
    """Print the messages of a receiver in order.

    Each message is a line: its id, its group or nothing, and its text. The line says if its sender has edited or
    recalled it. An event is a line with the id, or the origin, of the changed message. With --json one line per
    message.
    """
    position = _position(after)
    _print_page(
        transact(options.read_store(), lambda tr: Feed(name).read(tr.snapshot, receiver, position, limit)),
        options.json,
    )


@commands.command("follow", examples=["cq feed follow chat ann --json"])
def follow(options: Options, name: Name, receiver: Receiver, after: After = "") -> None:
    """Print the messages of a receiver and wait for new ones.

    The lines are those of `cq feed read`. ^C ends it.
    """
    db, position = options.read_store(), _position(after)
    while is_read():
        page = Feed(name).wait(db, receiver, position)
        _print_page(page, options.json)
        position = page.position


@commands.command("verify", examples=["cq feed verify chat"])
def verify(options: Options, name: Name) -> None:
    """Check a feed for inconsistent data.

    The feed may be in use. Checks the messages, their numbers and the notifications of workers. Each difference is a
    line: receiver or group, and description. The exit status is 4 if there are differences.
    """
    count = 0
    for difference in verify_feed(options.read_store(), name):
        count += 1
        print_line(options.json, **difference._asdict())
    note(f"{count or 'no'} difference{'' if count == 1 else 's'}")
    if count:
        raise typer.Exit(DIFFERENT)


@commands.command("delete", examples=["cq feed delete chat --yes"])
def delete(options: Options, name: Name, yes: Yes = False) -> None:
    """Delete a feed with all its messages, positions and groups."""
    db = options.open_store()
    transact(
        db, lambda tr: read_feed_config(tr.snapshot, name)
    )  # a feed that does not exist needs no confirmation
    confirm(f"delete feed {name!r} with all its messages?", yes)
    Feed(name).delete(db)
    options.answer(f"feed {name!r} is deleted", feed=name, done="deleted")


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
            group = "" if message.group is None else message.group
            print_words(message.id.hex(), group, message.body, *_change_of(message))


def _change_of(message: Message) -> list[str]:
    """The words for an edited or recalled message, or for the event of such a change; none for other messages."""
    change = "recalled" if message.recalled else "edited" if message.edited else ""
    if message.changes is None:
        return [change] if change else []
    return [f"{change} {message.changes.hex()}"]


def _as_json(message: Message) -> dict[str, Any]:
    found = {"id": message.id.hex(), "sent": message.sent, "body": to_json(message.body)}
    if message.origin is not None:
        found |= {"group": to_json(message.group), "origin": message.origin.hex()}
    if message.sender is not None:
        found |= {"sender": to_json(message.sender), "edited": message.edited, "recalled": message.recalled}
    if message.to is not None:
        found["to"] = to_json(message.to)
    if message.changes is not None:
        found["changes"] = message.changes.hex()
    return found


def _print_feeds(options: Options, statuses: list[FeedStatus]) -> None:
    options.print_list(
        statuses,
        _COLUMNS,
        empty="no feed is configured in this store: begin with `cq feed configure FEED`",
        as_json=_status_as_json,
    )


def _status_as_json(status: FeedStatus) -> dict[str, Any]:
    settings = asdict(status.config)
    backlog = {"to_deliver": status.to_deliver, "to_number": status.to_number}
    return {"feed": settings.pop("name"), **settings, **backlog}
