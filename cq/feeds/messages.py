"""Messages of feeds: their stored form, and the form that readers get.

A message is the CBOR list [sent, body], and a message to a group [sent, body, group, origin]. Times are in milliseconds
since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final, Generic

from cq import runtime
from cq.encoding import codec
from cq.errors import CorruptData
from cq.feeds.config import FeedConfig
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.feed import ID_BYTES, FeedKeys, as_name, bucket_of, id_of
from cq.store.api import KeyValue, Transaction
from cq.store.own_writes import note_writes
from cq.type_variables import M

MAX_MESSAGE_BYTES: Final = 90_000
"""Limit of a message's body: bytes in CBOR."""
COUNT_BYTES: Final = 8
PAGE_BYTES: Final = 1_000_000
"""About the most bytes of messages in a page."""
_SENT_END: Final = (
    253_370_764_800_000  # the year 9999: every earlier time is a date of `datetime` in every zone
)

_DIRECT: Final = b"\x82"  # the head of a CBOR list of two
_BY_GROUP: Final = b"\x84"
_counter: count[int] = count()


@dataclass(frozen=True, slots=True)
class Message(Generic[M]):
    """A message as a receiver reads it.

    Attributes:
        id: opaque place among the receiver's messages: ids compare in commit order.
        sent: time of the append, in seconds since 1970, by the sender's clock.
        body: the appended value; tuples are lists after reading.
        group: the group that it was sent to; None for a message to this receiver alone.
        origin: id of the message in the group, the same for all members; None for no group.
        number: 1 for the receiver's first message, 2 for the next; None unless it was read by number.
    """

    id: bytes
    sent: float
    body: M
    group: Any = None
    origin: bytes | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class FeedPage(Generic[M]):
    """Some messages of one receiver, in the order of their ids.

    Attributes:
        messages: the messages.
        position: position of the next read: the id of the last message, or the given position if there is none.
        more: whether there were more messages at the read version.
        missed: whether messages after the given position had been removed before this read.
    """

    messages: tuple[Message[M], ...]
    position: bytes
    more: bool
    missed: bool


def encode_message(body: Any) -> bytes:
    """Encode a message that is sent now; raises `InvalidData` or `TooLarge`."""
    return (
        _DIRECT + codec.encode(runtime.time_ns() // 1_000_000) + codec.encode_value(body, MAX_MESSAGE_BYTES)
    )


def member_copy(stored: bytes, group: bytes, origin: bytes) -> bytes:
    """Return a member's copy of a stored message to an encoded group, without decoding the body."""
    # The two elements of the list stay as they are: only its head changes, and two elements follow.
    return _BY_GROUP + stored[1:] + group + codec.encode(origin)


def decode_message(row: KeyValue, number: int | None = None) -> Message:
    """Decode the message in a row; raises `CorruptData`."""
    parts = codec.decode(row.value)
    if not isinstance(parts, list) or len(parts) not in (2, 4) or not _is_time(parts[0]):
        raise CorruptData(f"a message is not one that cq wrote: {row.value[:40]!r}")
    sent, body = parts[0] / 1000, parts[1]
    if len(parts) == 2:
        return Message(id_of(row.key), sent, body, number=number)
    group, origin = as_name(parts[2]), parts[3]
    if type(origin) is not bytes or len(origin) != ID_BYTES:
        raise CorruptData(f"a message is not one that cq wrote: {row.value[:40]!r}")
    return Message(id_of(row.key), sent, body, group, origin, number)


def _is_time(sent: object) -> bool:
    return type(sent) is int and 0 <= sent < _SENT_END


def put_messages(
    tr: Transaction, config: FeedConfig, keys: FeedKeys, receiver: bytes, stored: Iterable[bytes]
) -> list[bytes]:
    """Write messages after all others of an encoded receiver, in this order; blind. Returns the ends of their ids."""
    counters = []
    for value in stored:
        counter = next_counter()
        tr.set_versionstamped_key(keys.new_message(receiver, counter), value)
        counters.append(counter.to_bytes(8, "big"))
    if not counters:
        return []
    note_writes(tr, keys.messages(receiver)[0])
    # The value changes with each commit: it wakes watches of waiting readers.
    tr.set_versionstamped_value(keys.latest(receiver), INCOMPLETE_VERSIONSTAMP)
    if config.unread:
        tr.add(keys.appended(receiver), len(counters).to_bytes(COUNT_BYTES, "little"))
    if config.numbers:
        tr.set_versionstamped_value(keys.unnumbered(receiver), INCOMPLETE_VERSIONSTAMP)
        tr.set_versionstamped_value(keys.numbering(bucket_of(receiver)), INCOMPLETE_VERSIONSTAMP)
    return counters


def next_counter() -> int:
    """Return a number that separates and orders the writes of one transaction."""
    return next(_counter)


def take(rows: Iterable[KeyValue], limit: int, max_bytes: int = PAGE_BYTES) -> tuple[list[KeyValue], bool]:
    """Return the first rows, at most `limit` and about `max_bytes`, at least one, and whether there are more.

    A range read fetches rows lazily: give it a limit of one row more.
    """
    taken: list[KeyValue] = []
    size = 0
    for row in islice(rows, limit + 1):
        if len(taken) == limit or (taken and size + len(row.value) > max_bytes):
            return taken, True
        taken.append(row)
        size += len(row.value)
    return taken, False
