"""Delivery of group messages to the members: each exactly once, in bounded transactions, in commit order.

A step delivers some of a group's first messages together. It continues at the member at which the last step stopped,
and reads that place with a conflict in the transaction that writes to the members, so of two steps for one group only
one commits. When all members have the messages, the step clears them, and the next messages follow. Joins and leaves
during a delivery are events with later versionstamps, and so count for later messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cq.encoding import codec
from cq.encoding.stored import StoredRecord
from cq.feeds.groups import GroupEvent, by_user, clear_outdated, is_member
from cq.feeds.messages import StoredMessage, put_messages, quiet, take
from cq.keys import after
from cq.keys.feed import ID_BYTES, Range, id_of
from cq.observers.feeds.round_robin import RoundRobinTask
from cq.store.api import KeyValue, Transaction
from cq.store.api import Range as Rows
from cq.store.sizes import WRITE_BYTES, clear_bytes, set_bytes

MESSAGES: Final = 50
"""Limit of messages of a group in one delivery."""
WRITES: Final = 500
"""About the most messages that a step writes to members, of all groups together."""
BYTES: Final = 600_000
"""Limit of the predicted bytes that a step writes; exceeded only if the first member of each group needs more."""
_TOGETHER_BYTES: Final = 50_000
_EVENTS: Final = 10
"""Number of joins and leaves whose read takes about as long as a write."""


@dataclass(frozen=True, slots=True)
class _Delivery(StoredRecord):
    """The progress of a group's delivery.

    Attributes:
        until: id of the last message under delivery; empty: no delivery has begun.
        place: the encoded user after whom the delivery continues; empty: it begins with the first.
    """

    NOUN = "a delivery"

    until: bytes = b""
    place: bytes = b""


class _Copy(NamedTuple):
    """The copies of a group's message for its members.

    Attributes:
        id: of the message in the group.
        stored: the copy.
        sender: its encoded sender, whose own copy never counts as unread; None if none was given.
        changes: if it is an event, the id of the changed message. Those who have been members since then receive it.
    """

    id: bytes
    stored: bytes
    sender: bytes | None
    changes: bytes | None

    @classmethod
    def of(cls, group: bytes, row: KeyValue) -> _Copy:
        """The copies of the message in a row; raises `CorruptData`."""
        id_ = id_of(row.key)
        stored = StoredMessage.from_bytes(row.value)
        sender = None if stored.sender is None else codec.encode(stored.sender)
        copy = stored._replace(group=codec.decode(group), origin=id_).to_bytes(codec.encode(stored.body))
        return cls(id_, copy, sender, stored.changes)

    def of_member(self, user: bytes) -> bytes:
        """The copy of an encoded member."""
        return quiet(self.stored) if user == self.sender else self.stored


class DeliveryTask(RoundRobinTask):
    """Deliver the messages of a bucket of groups."""

    event = "feed_delivered"
    names_per_step = 6

    def __str__(self) -> str:
        return f"messages to groups of feed {self.config.name!r}, bucket {self.bucket}"

    def places(self) -> tuple[bytes, Range]:
        return self.keys.delivering(self.bucket), self.keys.all_undelivered(self.bucket)

    def serve(self, tr: Transaction, names: Sequence[bytes]) -> tuple[set[bytes], int]:
        """Deliver a part of the first messages of each of these groups."""
        stored = [tr.get(self.keys.delivery(group)) for group in names]
        deliveries = [_Delivery.from_bytes(each.value) for each in stored]
        logs = [self._messages(tr, *each) for each in zip(names, deliveries, strict=True)]
        events = [
            tr.snapshot.get_range(*self.keys.events(group, delivery.place))
            for group, delivery in zip(names, deliveries, strict=True)
        ]
        unfinished, messages = set(), 0
        for group, delivery, log, found in zip(names, deliveries, logs, events, strict=True):
            rows, more = take(log, MESSAGES, _TOGETHER_BYTES) if not delivery.until else (list(log), True)
            if not rows:  # all is delivered, and only the note was left
                continue
            users = by_user(self.keys, group, found)
            place, written = self._deliver(tr, group, rows, users, len(names))
            messages += written
            if place is None:
                tr.clear_range(rows[0].key, after(rows[-1].key))
                tr.clear(self.keys.delivery(group))
            else:
                tr.set(self.keys.delivery(group), _Delivery(id_of(rows[-1].key), place).to_bytes())
            if more or place is not None:
                unfinished.add(group)
        return unfinished, messages

    def _messages(self, tr: Transaction, group: bytes, delivery: _Delivery) -> Rows:
        """Return the range of the messages under delivery; at the start, of the first ones, one beyond the limit."""
        begin, end = self.keys.group_messages(group)
        if delivery.until:
            return tr.snapshot.get_range(begin, after(begin + delivery.until))
        return tr.snapshot.get_range(begin, end, limit=MESSAGES + 1)

    def _deliver(
        self,
        tr: Transaction,
        group: bytes,
        rows: Sequence[KeyValue],
        users: Iterable[tuple[bytes, list[GroupEvent]]],
        groups: int,
    ) -> tuple[bytes | None, int]:
        """Write these messages to the next members.

        Returns the last user served if there are others, else None, and the number of messages written.

        The limits of a step are for all its groups together, each of which gets an equal part.
        """
        writes, size = WRITES // groups, BYTES // groups
        messages = [_Copy.of(group, row) for row in rows]
        last: bytes | None = None
        written = 0
        for user, events in users:
            stored = [each.of_member(user) for each in messages if is_member(events, each.id, each.changes)]
            # A user without messages costs one write. One may join again and again, such as at each login.
            writes -= max(1, len(stored)) + len(events) // _EVENTS
            size -= self._cost(group, user, stored)
            # The first user is always served, or an expensive one would block the group.
            if last is not None and min(writes, size) < 0:
                return last, written
            put_messages(tr, self.config, self.keys, user, stored)
            written += len(stored)
            clear_outdated(tr, self.keys, group, user, events, messages[0].id)
            last = user
        return None, written

    def _cost(self, group: bytes, user: bytes, messages: Sequence[bytes]) -> int:
        """Predict the bytes of writing these messages to a user: each has the user's name in its key."""
        cost = clear_bytes(self.keys.events_of(group, user)[0])
        if messages:
            latest = self.keys.latest(user)
            cost += sum(map(len, messages)) + len(messages) * (len(latest) + WRITE_BYTES)
            cost += 3 * set_bytes(latest, ID_BYTES)  # `latest`, the note for numbers, and the notification
        return cost
