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
        check_event(row.value)
        events.append(GroupEvent(id_of(row.key), row.value == JOINED))
    return events


def check_event(stored: bytes) -> None:
    """Raise `CorruptData` unless this is a stored event."""
    if stored not in (JOINED, LEFT):
        raise CorruptData(f"an event of a group is not one that cq wrote: {stored[:40]!r}")


def is_member(events: Sequence[GroupEvent], message: bytes | None = None, since: bytes | None = None) -> bool:
    """Whether a user with these events was a member at the commit of the message with this id (None: is one now).

    With `since` also whether the user has been one without a break from the commit of that message on. An event in a
    message's own transaction counts as earlier: a commit has no order within.
    """
    known = events if message is None else _until(events, message)
    if not known or not known[-1].joined:
        return False
    return since is None or versionstamp_of_id(known[_first_join(known)].id) <= versionstamp_of_id(since)


def clear_outdated(
    tr: Transaction, keys: FeedKeys, group: bytes, user: bytes, events: Sequence[GroupEvent], message: bytes
) -> None:
    """Remove the events that decide the membership for no message from this id on.

    Of a member, the join that began the membership stays. The cleared ranges are safe from concurrent events: those of
    later commits sort after them.
    """
    known = _until(events, message)
    if not known:
        return
    begin, _ = keys.events_of(group, user)
    kept = _first_join(known)
    # A user without events is no member, so a last "left" is not needed either.
    for outdated in (known[:kept], known[kept + 1 :]):
        if outdated:
            tr.clear_range(begin + outdated[0].id, begin + outdated[-1].id + b"\x00")


def _until(events: Sequence[GroupEvent], message: bytes) -> Sequence[GroupEvent]:
    """The events up to the commit of a message."""
    return [event for event in events if versionstamp_of_id(event.id) <= versionstamp_of_id(message)]


def _first_join(events: Sequence[GroupEvent]) -> int:
    """The place of the join that began the membership as of the last event; the number of events if there is none."""
    place = len(events)
    while place and events[place - 1].joined:
        place -= 1
    return place
