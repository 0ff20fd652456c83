"""Membership in groups: now, and as of the commit of a message.

Each join and each leave writes an event without a read, so it conflicts with no other transaction. A user is a member
as of a commit if the last event of that user up to this commit, or in the same transaction, is a join.
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
    """A user has joined a group, or has left it."""

    id: bytes
    joined: bool


def put_event(tr: Transaction, keys: FeedKeys, group: bytes, user: bytes, *, joined: bool) -> None:
    """Write the event of a user who joins or leaves; blind."""
    tr.set_versionstamped_key(keys.new_event(group, user, next_counter()), JOINED if joined else LEFT)


def by_user(
    keys: FeedKeys, group: bytes, rows: Iterable[KeyValue]
) -> Iterator[tuple[bytes, list[GroupEvent]]]:
    """Split the rows of a group's events by user: (user, events) in key order; raises `CorruptData`."""
    for user, found in groupby(rows, lambda row: keys.user_of(group, row.key)):
        yield user, events_in(found)


def events_in(rows: Iterable[KeyValue]) -> list[GroupEvent]:
    """Decode the events of one user, in commit order; raises `CorruptData`."""
    events = []
    for row in rows:
        if row.value not in (JOINED, LEFT):
            raise CorruptData(f"an event of a group is not one that cq wrote: {row.value[:40]!r}")
        events.append(GroupEvent(id_of(row.key), row.value == JOINED))
    return events


def is_member(events: Sequence[GroupEvent], message: bytes | None = None) -> bool:
    """Whether a user with these events was a member at the commit of the message with this id (None: is one now).

    An event in the message's own transaction counts as earlier: a commit has no order within.
    """
    for event in reversed(events):
        if message is None or versionstamp_of_id(event.id) <= versionstamp_of_id(message):
            return event.joined
    return False


def clear_outdated(
    tr: Transaction, keys: FeedKeys, group: bytes, user: bytes, events: Sequence[GroupEvent], message: bytes
) -> None:
    """Remove the events that decide the membership for no message from this id on.

    The cleared range is safe from concurrent events: those of later commits sort after it.
    """
    known = [event for event in events if versionstamp_of_id(event.id) <= versionstamp_of_id(message)]
    if not known:
        return
    # A user without events is no member, so a last "left" is not needed either.
    outdated = known[:-1] if known[-1].joined else known
    if outdated:
        begin, _ = keys.events_of(group, user)
        tr.clear_range(begin, begin + outdated[-1].id + b"\x00")
