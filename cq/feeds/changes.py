"""Messages that their sender edits or recalls.

A message has its text in one place: in its row, or in that of the text of a message to a group. A change replaces this
text, so that later readers see only the new one, and appends an event, from which earlier readers learn of it. The
event has no text but the id of the message.
"""

from __future__ import annotations

from typing import Any

from cq.encoding import codec
from cq.errors import InvalidData
from cq.feeds.config import FeedConfig
from cq.feeds.messages import (
    EDITED,
    QUIET,
    RECALLED,
    SHARED,
    StoredMessage,
    encode_message,
    next_counter,
    now,
    put_messages,
    quiet,
)
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.feed import FeedKeys, bucket_of, decode_name, encode_name
from cq.store.api import Transaction


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
