"""Messages of feeds: their stored form, and the form that readers get.

A message is the CBOR list of the fields of `StoredMessage`. Times are in milliseconds since 1970.

A message has its text in one place: in its row, or in that of the text of a message to a group. If its sender edits or
recalls it, the change replaces this text, so that later readers see only the new one, and appends an event, from which
earlier readers learn of it. The event has no text but the id of the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final, Generic, NamedTuple

from cq import runtime
from cq.encoding import codec
from cq.errors import CorruptData, CqError, InvalidData
from cq.feeds.config import FeedConfig
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.feed import ID_BYTES, FeedKeys, as_name, bucket_of, decode_name, encode_name, id_of
from cq.store.api import KeyValue, Transaction, TransactionRead
from cq.store.own_writes import note_writes
from cq.type_variables import M

MAX_MESSAGE_BYTES: Final = 90_000
"""Limit of a message's body: bytes in CBOR."""
COUNT_BYTES: Final = 8
PAGE_BYTES: Final = 1_000_000
"""About the most bytes of messages in a page."""
_TEXTS: Final = 100  # in other rows than their messages, that are read at once
_SENT_END: Final = (
    253_370_764_800_000  # the year 9999: every earlier time is a date of `datetime` in every zone
)

_HEAD: Final = b"\x88"  # of the CBOR list of all fields
_NONE: Final = codec.encode(None)

# Bits of `StoredMessage.flags`.
QUIET: Final = 1
"""It never counts as unread: an event, or the receiver's own message."""
SHARED: Final = 2
"""Its body is the text of the message to the group, which is stored once."""
EDITED: Final = 4
RECALLED: Final = 8
_FLAGS_END: Final = 16  # less than 24, so the flags are the last byte of the row

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
        sender: its sender, who can edit and recall it; None if none was given.
        to: the receiver of the original, if this is the copy for its sender; otherwise None.
        changes: None for a message. An event has the `id`, in a group the `origin`, of the message that its sender has
            edited or recalled; `body`, `edited` and `recalled` are those of that message as of this read.
        edited: whether the body has replaced another one.
        recalled: whether the text is no longer stored, because its sender has recalled it, or retention has removed it
            before an event or a reference; the body is None.
    """

    id: bytes
    sent: float
    body: M
    group: Any = None
    origin: bytes | None = None
    number: int | None = None
    sender: Any = None
    to: Any = None
    changes: bytes | None = None
    edited: bool = False
    recalled: bool = False


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


class StoredMessage(NamedTuple):
    """The fields of a stored message, see `Message`; names are as decoded, and so lists for tuples.

    Attributes:
        flags: of `QUIET`, `SHARED`, `EDITED` and `RECALLED`.
    """

    sent: int
    body: Any
    group: Any = None
    origin: bytes | None = None
    sender: Any = None
    to: Any = None
    changes: bytes | None = None
    flags: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> StoredMessage:
        """Decode a row; raises `CorruptData`."""
        parts = codec.decode(data)
        found = cls(*parts) if isinstance(parts, list) and len(parts) == len(cls._fields) else None
        if found is None or not (
            _is_time(found.sent)
            and all(each is None or _is_id(each) for each in (found.origin, found.changes))
            and type(found.flags) is int
            and 0 <= found.flags < _FLAGS_END
        ):
            raise CorruptData(f"a message is not one that cq wrote: {data[:40]!r}")
        return found

    def to_bytes(self, body: bytes = _NONE) -> bytes:
        """Encode it, with this encoded body in place of its own."""
        # Only the head of the list of the fields after the body differs from that of the list of all fields.
        return _HEAD + codec.encode(self.sent) + body + codec.encode(list(self[2:]))[1:]

    def place_of_text(self, keys: FeedKeys, receiver: bytes) -> bytes | None:
        """The key of the row that has its body; None if it has the body itself. Raises `CorruptData`."""
        if self.changes is None and not self.flags & SHARED:
            return None
        if self.group is None and self.changes is not None:
            return keys.message(receiver, self.changes)
        origin = self.changes or self.origin
        try:
            return keys.group_text(encode_name("group", as_name(self.group)), origin or b"")
        except CqError as error:
            raise CorruptData(f"a message is not one that cq wrote: {error}") from None

    def message(self, id_: bytes, number: int | None = None, text: StoredMessage | None = None) -> Message:
        """The message as a receiver reads it, with the body of `text` if given."""
        has_text = text or self
        return Message(
            id_,
            self.sent / 1000,
            has_text.body,
            as_name(self.group),
            self.origin,
            number,
            as_name(self.sender),
            as_name(self.to),
            self.changes,
            bool(has_text.flags & EDITED),
            bool(has_text.flags & RECALLED),
        )


_GONE: Final = StoredMessage(0, None, flags=RECALLED)
_UNSIGNED: Final = codec.encode(list(StoredMessage(0, None)[2:]))[1:]
"""The end of a stored message without a sender, made once: most messages are such."""


def encode_message(body: Any, sender: Any = None, to: Any = None) -> bytes:
    """Encode a message that is sent now; raises `InvalidData` or `TooLarge`."""
    encoded = encode_body(body)
    if sender is None:
        return _HEAD + codec.encode(now()) + encoded + _UNSIGNED
    encode_name("sender", sender)
    return StoredMessage(now(), None, sender=sender, to=to).to_bytes(encoded)


def encode_body(body: Any) -> bytes:
    """Encode the body of a message; raises `InvalidData` or `TooLarge`."""
    return codec.encode_value(body, MAX_MESSAGE_BYTES)


def now() -> int:
    """The time of a message that is sent now."""
    return runtime.time_ns() // 1_000_000


def is_quiet(stored: bytes) -> bool:
    """Whether a stored message never counts as unread; one that was emptied by another program counts."""
    return bool(stored) and bool(stored[-1] & QUIET)


def quiet(stored: bytes) -> bytes:
    """Return a stored message as one that never counts as unread."""
    return stored[:-1] + bytes((stored[-1] | QUIET,))


def decode_message(row: KeyValue, number: int | None = None) -> Message:
    """Decode the message in a row, without a body if another row has it; raises `CorruptData`."""
    return StoredMessage.from_bytes(row.value).message(id_of(row.key), number)


def read_messages(
    tr: TransactionRead, keys: FeedKeys, receiver: bytes, rows: Sequence[KeyValue], number: int | None = None
) -> tuple[tuple[Message, ...], bool]:
    """Return the messages in these rows of a receiver, with bodies that other rows have; and whether these are all.

    Of many large bodies in other rows only the first are read, about `PAGE_BYTES`, and the messages end there. `number`
    is that of the first message. Raises `CorruptData`.
    """
    messages: list[Message] = []
    size = 0
    for start in range(0, len(rows), _TEXTS):
        found = []
        for row in rows[start : start + _TEXTS]:
            stored = StoredMessage.from_bytes(row.value)
            place = stored.place_of_text(keys, receiver)
            found.append((id_of(row.key), stored, None if place is None else tr.get(place)))
        for id_, stored, text in found:
            has_text = None
            if text is not None:
                size += len(text.value or b"")
                if messages and size > PAGE_BYTES:
                    return tuple(messages), False
                has_text = _GONE if text.value is None else StoredMessage.from_bytes(text.value)
            at = None if number is None else number + len(messages)
            messages.append(stored.message(id_, at, has_text))
    return tuple(messages), True


def _is_time(sent: object) -> bool:
    return type(sent) is int and 0 <= sent < _SENT_END


def _is_id(id_: object) -> bool:
    return type(id_) is bytes and len(id_) == ID_BYTES


def put_messages(
    tr: Transaction,
    config: FeedConfig,
    keys: FeedKeys,
    receiver: bytes,
    stored: Iterable[bytes],
    number: int | None = None,
) -> list[bytes]:
    """Write messages after all others of an encoded receiver, in this order; blind. Returns the ends of their ids.

    A single message can be given its `number` by `next_counter`.
    """
    counters, loud = [], 0
    for value in stored:
        counter = next_counter() if number is None else number
        tr.set_versionstamped_key(keys.new_message(receiver, counter), value)
        counters.append(counter.to_bytes(8, "big"))
        loud += not is_quiet(value)
    if not counters:
        return []
    note_writes(tr, keys.messages(receiver)[0])
    # The value changes with each commit: it wakes watches of waiting readers.
    tr.set_versionstamped_value(keys.latest(receiver), INCOMPLETE_VERSIONSTAMP)
    if config.unread and loud:
        tr.add(keys.appended(receiver), loud.to_bytes(COUNT_BYTES, "little"))
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


def put_with_copy(
    tr: Transaction, config: FeedConfig, sender: Any, receiver: Any, message: Any
) -> list[bytes]:
    """Write a message to a receiver, and its copy for the sender, under one id; blind."""
    keys, counter, own = FeedKeys(config.name), next_counter(), encode_name("sender", sender)
    encoded, ends = encode_name("receiver", receiver), list[bytes]()
    copy = quiet(encode_message(message, sender, to=receiver))
    stored = {encoded: encode_message(message, sender), own: copy}  # one to oneself is only a copy
    for name, value in stored.items():
        ends = put_messages(tr, config, keys, name, [value], counter)
    return ends


def change_message(
    tr: Transaction, config: FeedConfig, receiver: Any, id_: bytes, sender: Any, body: bytes | None
) -> bool:
    """Replace the text of a message to a receiver, and of the copy for its sender; `body` None recalls it.

    Returns whether it had a text; raises `InvalidData` if it is of another sender, or was sent to another receiver.
    """
    keys, encoded = FeedKeys(config.name), encode_name("receiver", receiver)
    names = dict.fromkeys((encoded, encode_name("sender", sender)))
    stored = {name: tr.get(keys.message(name, id_)) for name in names}
    changed = {name: _changed(each.value, sender, body, (name, encoded)) for name, each in stored.items()}
    for name, value in changed.items():
        if value is not None:
            tr.set(keys.message(name, id_), value)
            put_messages(tr, config, keys, name, [_event(sender, id_)])
    return any(value is not None for value in changed.values())


def change_group_message(
    tr: Transaction, keys: FeedKeys, group: Any, origin: bytes, sender: Any, body: bytes | None
) -> bool:
    """Replace the text of a message to a group; otherwise as `change_message`."""
    encoded = encode_name("group", group)
    place = keys.group_text(encoded, origin)
    value = _changed(tr.get(place).value, sender, body)
    if value is None:
        return False
    tr.set(place, value)
    put_group_message(tr, keys, encoded, _event(sender, origin))
    return True


def put_group_message(tr: Transaction, keys: FeedKeys, group: bytes, stored: bytes) -> int:
    """Write a message to an encoded group, for delivery by workers; blind. Returns its counter."""
    counter = next_counter()
    tr.set_versionstamped_key(keys.new_group_message(group, counter), stored)
    tr.set_versionstamped_value(keys.undelivered(group), INCOMPLETE_VERSIONSTAMP)
    tr.set_versionstamped_value(keys.delivering(bucket_of(group)), INCOMPLETE_VERSIONSTAMP)
    return counter


def put_text_once(tr: Transaction, keys: FeedKeys, group: bytes, text: bytes, sender: Any) -> int:
    """Write a message to an encoded group whose text its members' copies only refer to; otherwise as above."""
    reference = StoredMessage(now(), None, sender=sender, flags=SHARED)
    counter = put_group_message(tr, keys, group, reference.to_bytes())
    tr.set_versionstamped_key(keys.new_group_text(group, counter), text)
    return counter


def _event(sender: Any, changes: bytes) -> bytes:
    return StoredMessage(now(), None, sender=sender, changes=changes, flags=QUIET).to_bytes()


def _changed(
    data: bytes | None, sender: Any, body: bytes | None, found: tuple[bytes, bytes] | None = None
) -> bytes | None:
    """A stored message with another text; None if it is not there, or was recalled.

    `found` is the encoded receiver in whose inbox it is, and the one to whom it must have been sent; None in a group.
    """
    if data is None:
        return None
    stored = StoredMessage.from_bytes(data)
    if stored.sender is None or codec.encode(stored.sender) != encode_name("sender", sender):
        raise InvalidData(
            f"this message is not one of {codec.brief(sender)}: only its sender can edit or recall it, if the append "
            "was given a `sender`"
        )
    if stored.flags & SHARED:
        raise InvalidData(
            f"this message was sent to the group {codec.brief(stored.group)}: change it there, by its `origin` and "
            "with `to_group=True`"
        )
    if found is not None:
        inbox, expected = found
        sent_to = inbox if stored.to is None else codec.encode(stored.to)
        if sent_to != expected:
            raise InvalidData(
                f"this message was sent to {codec.brief(decode_name(sent_to))}: change it there, together with the "
                "copy for its sender"
            )
    if stored.flags & RECALLED or stored.changes is not None:
        return None
    if body is None:
        return stored._replace(flags=stored.flags | RECALLED).to_bytes()
    return stored._replace(flags=stored.flags | EDITED).to_bytes(body)
