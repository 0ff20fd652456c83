"""Who is a member of a group, and who was when a message was committed.

Joining and leaving write an event, blindly: nothing is read, so whoever joins conflicts with nobody. A user is a member
as of a commit if the last event of that user which was committed by then, or in that transaction, is one of joining.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from cq.errors import CorruptData
from cq.feeds.messages import next_counter
from cq.keys.feed import FeedKeys, id_of, versionstamp_of_id
from cq.store.api import KeyValue, Transaction

JOINED: Final = b"+"
LEFT: Final = b"-"


class GroupEvent(NamedTuple):
    """That a user has joined a group, or has left it."""

    id: bytes
    joined: bool


def put_event(tr: Transaction, keys: FeedKeys, group: bytes, user: bytes, *, joined: bool) -> None:
    """Note that a user joins or leaves."""
    tr.set_versionstamped_key(keys.new_event(group, user, next_counter()), JOINED if joined else LEFT)


def by_user(
    keys: FeedKeys, group: bytes, rows: Iterable[KeyValue]
) -> Iterator[tuple[bytes, list[GroupEvent]]]:
    """The events of each user in turn, of the rows of a group's events; raises `CorruptData`."""
    for user, found in groupby(rows, lambda row: keys.user_of(group, row.key)):
        yield user, events_in(found)


def events_in(rows: Iterable[KeyValue]) -> list[GroupEvent]:
    """The events in a user's rows, in commit order; raises `CorruptData`."""
    events = []
    for row in rows:
        if row.value not in (JOINED, LEFT):
            raise CorruptData(f"an event of a group is not one that cq wrote: {row.value[:40]!r}")
        events.append(GroupEvent(id_of(row.key), row.value == JOINED))
    return events


def is_member(events: Sequence[GroupEvent], message: bytes | None = None) -> bool:
    """Whether a user with these events was a member when the message of an id was committed, or is one now.

    What shares the message's transaction counts as before it: a commit has no inside.
    """
    for event in reversed(events):
        if message is None or versionstamp_of_id(event.id) <= versionstamp_of_id(message):
            return event.joined
    return False


def clear_outdated(
    tr: Transaction, keys: FeedKeys, group: bytes, user: bytes, events: Sequence[GroupEvent], message: bytes
) -> None:
    """Remove the events that no message from the one of an id on will ask for.

    Events of later commits sort behind all that is cleared.
    """
    known = [event for event in events if versionstamp_of_id(event.id) <= versionstamp_of_id(message)]
    if not known:
        return
    outdated = known[:-1] if known[-1].joined else known  # who has left is nobody any more
    if outdated:
        begin, _ = keys.events_of(group, user)
        tr.clear_range(begin, begin + outdated[-1].id + b"\x00")
