"""Writes the messages of groups to their members: each exactly once, in bounded transactions, in commit order.

Some of a group's first messages are delivered together: a step goes on through the members from where the last one
has stopped, in the transaction that writes to them, and really reads that place, so of two steps for one group only
one commits. Once all members have them the messages are cleared, and the next ones follow. Whoever joins or leaves
meanwhile is told of by events with versionstamps of their own, and so counts for later messages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cq.encoding import codec
from cq.feeds.config import FeedConfig
from cq.feeds.groups import GroupEvent, by_user, clear_outdated, is_member
from cq.feeds.messages import by_group, put_messages, take
from cq.keys import after
from cq.keys.feed import BUCKETS, ID_BYTES, Range, id_of
from cq.observers.feeds.round_robin import RoundRobinTask
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import Database, KeyValue, Transaction
from cq.store.api import Range as Rows
from cq.store.write_sizes import WRITE_BYTES, clear_bytes, set_bytes

MESSAGES: Final = 50
"""How many messages of a group are delivered together at most."""
WRITES: Final = 500
"""About how many messages a step writes to members at most, of all groups together."""
BYTES: Final = 600_000
"""How many bytes a step writes at most, as predicted; more only where the first member of each group needs more."""
_TOGETHER_BYTES: Final = 50_000


@dataclass(frozen=True, slots=True)
class _Delivery:
    """How far a group's messages are delivered.

    Attributes:
        until: the id of the last of those that are delivered together; empty when none are yet.
        place: the encoded user behind which to go on; empty for the first.
    """

    until: bytes = b""
    place: bytes = b""

    def to_bytes(self) -> bytes:
        """As stored."""
        return codec.encode([self.until, self.place])

    @classmethod
    def from_bytes(cls, data: bytes | None) -> _Delivery:
        """The inverse; raises `CorruptData`."""
        return cls() if data is None else cls(*codec.decode_list(data, (bytes, bytes), "a delivery"))


class DeliveryTask(RoundRobinTask):
    """The messages to a bucket of groups."""

    most = 6

    def __init__(self, db: Database, config: FeedConfig, bucket: int) -> None:
        super().__init__(db, config, bucket)
        self.notification = self.keys.delivering(bucket)

    def __str__(self) -> str:
        return f"messages to groups of feed {self.config.name!r}, bucket {self.bucket}"

    def noted(self) -> Range:
        return self.keys.all_undelivered(self.bucket)

    def tell(self) -> None:
        emit("feed_delivered", feed=self.config.name, messages=self.messages)

    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Deliver a part of the first messages of each of these groups."""
        stored = [tr.get(self.keys.delivery(group)) for group in names]
        deliveries = [_Delivery.from_bytes(each.value) for each in stored]
        logs = [self._messages(tr, *each) for each in zip(names, deliveries, strict=True)]
        events = [
            tr.snapshot.get_range(*self.keys.events(group, delivery.place))
            for group, delivery in zip(names, deliveries, strict=True)
        ]
        left = set()
        for group, delivery, log, found in zip(names, deliveries, logs, events, strict=True):
            rows, more = take(log, MESSAGES, _TOGETHER_BYTES) if not delivery.until else (list(log), True)
            if not rows:
                continue
            users = by_user(self.keys, group, found)
            place = self._deliver(tr, group, rows, users, _DeliveryBudget.of(len(names)))
            if place is None:
                tr.clear_range(rows[0].key, after(rows[-1].key))
                tr.clear(self.keys.delivery(group))
            else:
                tr.set(self.keys.delivery(group), _Delivery(id_of(rows[-1].key), place).to_bytes())
            if more or place is not None:
                left.add(group)
        return left

    def _messages(self, tr: Transaction, group: bytes, delivery: _Delivery) -> Rows:
        """The messages that are being delivered together, or the first ones, one more than may be."""
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
        budget: _DeliveryBudget,
    ) -> bytes | None:
        """Write these messages to the next users who were members; returns the last one if there are others."""
        messages = [(id_of(row.key), by_group(row.value, group, id_of(row.key))) for row in rows]
        last: bytes | None = None
        for user, events in users:
            stored = [message for id_, message in messages if is_member(events, id_)]
            if not budget.spend(len(stored), self._cost(group, user, stored)) and last is not None:
                return last
            put_messages(tr, self.config, self.keys, user, stored)
            self.messages += len(stored)
            clear_outdated(tr, self.keys, group, user, events, messages[0][0])
            last = user
        return None

    def _cost(self, group: bytes, user: bytes, messages: Sequence[bytes]) -> int:
        """The bytes of writing these messages to a user, about: each has the user's name in its key."""
        cost = clear_bytes(self.keys.events_of(group, user)[0])
        if messages:
            latest = self.keys.latest(user)
            cost += sum(map(len, messages)) + len(messages) * (len(latest) + WRITE_BYTES)
            cost += 3 * set_bytes(latest, ID_BYTES)  # it, and two notes that numbers are to be given
        return cost


@dataclass(slots=True)
class _DeliveryBudget:
    """What a step may still write for one group."""

    writes: int
    size: int

    @classmethod
    def of(cls, groups: int) -> _DeliveryBudget:
        """The share of one of so many groups."""
        return cls(WRITES // groups, BYTES // groups)

    def spend(self, messages: int, size: int) -> bool:
        """Take what a user costs, who gets these messages, or none, which takes a look, too; whether it was enough."""
        self.writes -= max(1, messages)
        self.size -= size
        return self.writes >= 0 and self.size >= 0


def delivering_tasks(db: Database, config: FeedConfig) -> list[Task]:
    """The tasks of a worker for the groups of a feed."""
    return [DeliveryTask(db, config, bucket) for bucket in range(BUCKETS)]
