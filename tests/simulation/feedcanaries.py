"""Canaries of feeds, see `canary`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq.encoding import codec
from cq.keys.feed import encode_name, id_of
from tests.simulation.canary import Canaries, reads_without_conflict
from tests.simulation.store import SimTransaction

feeds = Canaries("feeds")


@feeds.patches(seed=85)
def delivers_without_the_lock() -> Any:
    """Two deliveries to one group do not conflict."""
    return reads_without_conflict(lambda key: key.startswith(b"cq/f/feed/h"))


@feeds.replaces("cq.observers.feeds.deliver.is_member")
def delivers_to_members_of_now(_: Any, events: Any, message: Any, since: Any) -> Any:
    """A message reaches those who are members when it is delivered."""
    return events[-1].joined


@feeds.patches(seed=107)
def clears_notes_blindly() -> Any:
    """A step takes away that a receiver or a group has work, though more has come since it has read."""

    def clear(self: SimTransaction, key: bytes, value: bytes) -> None:
        self.inner.clear(key)

    return patch.object(SimTransaction, "compare_and_clear", clear, create=True)


@feeds.replaces("cq.observers.feeds.trim.FeedTrimTask._remove")
def removes_without_a_word(
    _: Any, self: Any, tr: Any, receiver: bytes, until: bytes, number: int, _count: int
) -> None:
    """Messages that are too many are removed without a note of it."""
    tr.clear_range(*self.keys.messages_through(receiver, until))
    tr.clear_range(*self.keys.numbers_through(receiver, number))


@feeds.replaces("cq.feeds.feed.Feed._count_through")
def counts_as_read_all_that_there_is(
    _: Any, self: Any, tr: Any, receiver: bytes, key: bytes, position: bytes
) -> bytes:
    """A terminal that moves on counts as one that has read everything."""
    count = int.from_bytes(tr.snapshot.get(self.keys.appended(receiver)).value or b"", "little")
    return count.to_bytes(8, "big")


@feeds.replaces("cq.observers.feeds.deliver.put_messages")
def delivers_without_counting(put: Any, tr: Any, config: Any, *args: Any) -> Any:
    """Messages of groups are no unread messages."""
    return put(tr, replace(config, unread=False), *args)


@feeds.replaces("cq.feeds.messages.put_messages")
def edits_without_an_event(*_: Any) -> None:
    """A message is changed, and those who have read it are not told."""


@feeds.replaces("cq.feeds.messages.StoredMessage.to_bytes", seed=14)
def keeps_recalled_texts(write: Any, stored: Any, body: bytes | None = None) -> Any:
    """A message that is recalled keeps its text."""
    return write(stored, codec.encode(stored.body) if body is None else body)


@feeds.replaces("cq.observers.feeds.deliver.is_member", seed=22, also={"changes", "groups"})
def shows_members_what_was_sent_before_they_came(is_member: Any, events: Any, message: Any, _: Any) -> Any:
    """The event of a message reaches those who have joined after it, with its text."""
    return is_member(events, message)


@feeds.replaces("cq.feeds.messages.is_quiet")
def counts_events_as_unread(*_: Any) -> bool:
    """An edit is an unread message."""
    return False


@feeds.replaces("cq.feeds.messages.quiet", "cq.observers.feeds.deliver.quiet", also={"changes"})
def counts_own_messages_as_unread(_: Any, stored: bytes) -> bytes:
    """The sender's copy of a message is unread."""
    return stored


@feeds.replaces("cq.feeds.feed.change_message", also={"changes"})
def changes_no_copies(change: Any, tr: Any, config: Any, receiver: Any, *args: Any) -> bool:
    """An edit leaves the copy of the sender as it is."""
    with patch("cq.feeds.messages.encode_name", lambda what, name: encode_name(what, receiver)):
        return bool(change(tr, config, receiver, *args))


@feeds.replaces("cq.observers.feeds.deliver.DeliveryTask._deliver", also={"changes", "groups"})
def takes_texts_away_when_delivered(
    deliver: Any, self: Any, tr: Any, group: bytes, rows: Any, *args: Any
) -> Any:
    """The text of a message to a group is removed while its members' copies refer to it."""
    for row in rows:
        tr.clear(self.keys.group_text(group, id_of(row.key)))
    return deliver(self, tr, group, rows, *args)


@feeds.replaces("cq.keys.feed.FeedKeys.of_receiver", seed=10, also={"forget", "numbers"})
def forgets_no_numbers(ranges: Any, *given: Any) -> Any:
    """The next message of a forgotten receiver has the number after its last one."""
    whole = ranges(*given)
    return whole[:1] + whole[2:]
