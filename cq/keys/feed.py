r"""The keys of feeds, below `F = "cq/f/" name "/"`.

Names of receivers, groups, users and terminals are in CBOR. No such name begins with another one, so the keys of two
receivers never mix. Numbers are big-endian. An `id` is versionstamp10 and counter8. Each row has a key, its value, and
who writes it.

    "cq/feeds/" name          ""                                          one for each configured feed
    F "config"                the configuration                           configure
    F "m" receiver id         a message                                   append (blind), deliveries
    F "l" receiver            versionstamp of the latest message          append (blind), deliveries
    F "q" bucket4 receiver    the same, while a message has no number     append (blind), cleared by numbering
    F "r" bucket4             notification of numbering                   append (blind), cleared by numbering
    F "s" receiver            id and number of the last message numbered  numbering (the receiver's lock)
    F "k" receiver number8    id of a message                             numbering, retention
    F "t" receiver            id and number of the last message removed   retention
                              with unread counts also a count8: how many of the removed ones counted as unread
    F "p" receiver terminal   id of the last message that it has read     advance (blind)
                              with unread counts also its count8: how many messages the receiver had got by then
    F "o" receiver terminal   end of its lease as online, in ms since     set_online (blind)
                              1970, big-endian
    F "u" receiver            number of messages ever that count as       append (blind), deliveries
                              unread, little-endian
    F "e" group user id       joined or left                              join, leave (blind), old ones cleared
    F "g" group id            a message to a group                        append (blind), cleared when delivered
    F "b" group id            the text of a message to a group that is    append (blind), edit, recall, retention
                              stored once
    F "w" bucket4 group       versionstamp of the latest such message     append (blind), cleared by deliveries
    F "v" bucket4             notification of deliveries                  append (blind), cleared by deliveries
    F "h" group               current message, last user who received it  deliveries (the group's lock)
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final
from zlib import crc32

from cq.encoding import codec
from cq.encoding.cbor import array_head
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.keys.queue import ROOT, VERSIONSTAMP_BYTES, Prefix, below, check_name, prefix_end, stamped, valid_name

BUCKETS: Final = 8
"""Number of buckets of the receivers, and of the groups, of every feed. It never changes: keys contain the bucket."""
ID_BYTES: Final = VERSIONSTAMP_BYTES + 8
"""Length of the id of a message."""
MAX_NAME_BYTES: Final = 1_000
"""Limit of the name of a receiver, group, user or terminal, in CBOR."""

feed_entries: Final = Prefix(ROOT + b"feeds/")
"""The prefix of the store's list of feeds."""
_BELOW: Final = ROOT + b"f/"
_BUCKET: Final = Struct(">I")
_NUMBER: Final = Struct(">Q")

Range = tuple[bytes, bytes]


def check_feed_name(name: object) -> str:
    """The name itself; raises `InvalidConfiguration` if it is not a valid name of a feed."""
    return check_name(name, "feed")


def feed_entry(name: str) -> bytes:
    """The key of a feed in the store's list of feeds."""
    return feed_entries + name.encode()


def feed_of_entry(key: bytes) -> str | None:
    """The inverse of `feed_entry`; None if the name is not valid."""
    return valid_name(feed_entries.rest(key))


def is_of_feeds(key: bytes) -> bool:
    """Whether a key of the store belongs to a feed, or to the list of feeds."""
    return key.startswith((feed_entries, _BELOW))


class FeedKeys:
    r"""The keys of one feed; receivers, groups, users and terminals are results of `encode_name`.

    >>> FeedKeys("chat").latest(encode_name("receiver", "ann"))
    b'cq/f/chat/lcann'

    Attributes:
        all_latest: the prefix of the `latest` keys of all receivers.
        all_group_messages, all_group_texts: the prefixes of the messages to all groups, and of their texts.
        all_events: the prefix of the joins and leaves of all groups.
    """

    def __init__(self, name: str) -> None:
        self.prefix = _BELOW + check_feed_name(name).encode() + b"/"
        self.config = self.prefix + b"config"
        self.all_latest = Prefix(self.prefix + b"l")
        self.all_group_messages = Prefix(self.prefix + b"g")
        self.all_group_texts = Prefix(self.prefix + b"b")
        self.all_events = Prefix(self.prefix + b"e")

    # Messages

    def new_message(self, receiver: bytes, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for a message."""
        return stamped(self.prefix + b"m" + receiver, _NUMBER.pack(counter))

    def messages(self, receiver: bytes, after: bytes = b"") -> Range:
        """The range of a receiver's messages after an id, in commit order."""
        prefix = self.prefix + b"m" + receiver
        return _after(prefix, after), prefix_end(prefix)

    def messages_through(self, receiver: bytes, until: bytes) -> Range:
        """The range of a receiver's messages up to and including an id."""
        prefix = self.prefix + b"m" + receiver
        return prefix, _after(prefix, until)

    def after_messages(self, receiver: bytes) -> bytes:
        """A key after a receiver's messages, in the range that an append makes unreadable; no transaction writes it."""
        return self.prefix + b"m" + receiver + b"\xff" * VERSIONSTAMP_BYTES

    def message(self, receiver: bytes, id_: bytes) -> bytes:
        """The key of a message."""
        return self.prefix + b"m" + receiver + id_

    def latest(self, receiver: bytes) -> bytes:
        """The key that changes with each message to a receiver. Waiting readers watch it."""
        return self.all_latest + receiver

    def removed(self, receiver: bytes) -> bytes:
        """The key of id and number of the last message of a receiver that was removed."""
        return self.prefix + b"t" + receiver

    def position(self, receiver: bytes, terminal: bytes) -> bytes:
        """The key of the id of the last message that a terminal has read."""
        return self.prefix + b"p" + receiver + terminal

    def lease(self, receiver: bytes, terminal: bytes) -> bytes:
        """The key of the time until which a terminal is online."""
        return self.prefix + b"o" + receiver + terminal

    def leases(self, receiver: bytes) -> Range:
        """The range of the `lease` keys of a receiver's terminals."""
        return below(self.lease(receiver, b""))

    def appended(self, receiver: bytes) -> bytes:
        """The key of the number of messages that a receiver has ever got, in a feed with unread counts."""
        return self.prefix + b"u" + receiver

    def of_receiver(self, receiver: bytes) -> list[Range]:
        """The ranges of all data of a receiver, except memberships."""
        whole = [self.prefix + part + receiver for part in (b"m", b"k", b"p", b"o")]
        single = (
            self.latest(receiver),
            self.removed(receiver),
            self.numbered(receiver),
            self.appended(receiver),
        )
        return [
            *((prefix, prefix_end(prefix)) for prefix in whole),
            *((key, key + b"\x00") for key in (*single, self.unnumbered(receiver))),
        ]

    # Numbers

    def unnumbered(self, receiver: bytes) -> bytes:
        """The key that exists while a receiver has messages without numbers."""
        return self.all_unnumbered(bucket_of(receiver))[0] + receiver

    def all_unnumbered(self, bucket: int) -> Range:
        """The range of the `unnumbered` keys of a bucket's receivers."""
        return below(self.prefix + b"q" + _BUCKET.pack(bucket))

    def numbering(self, bucket: int) -> bytes:
        """The key that exists while a receiver of a bucket has messages without numbers."""
        return self.prefix + b"r" + _BUCKET.pack(bucket)

    def numbered(self, receiver: bytes) -> bytes:
        """The key of id and number of a receiver's last numbered message. Numbering reads and writes it as a lock."""
        return self.prefix + b"s" + receiver

    def number(self, receiver: bytes, number: int) -> bytes:
        """The key of the id of the message with a number."""
        return self.prefix + b"k" + receiver + _NUMBER.pack(number)

    def numbers_through(self, receiver: bytes, number: int) -> Range:
        """The range of a receiver's numbers up to and including one."""
        return self.prefix + b"k" + receiver, self.number(receiver, number + 1)

    # Groups

    def new_event(self, group: bytes, user: bytes, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for an event: a user joins or leaves a group."""
        return stamped(self.all_events + group + user, _NUMBER.pack(counter))

    def events(self, group: bytes, after: bytes = b"") -> Range:
        """The range of a group's events by user, optionally only of the users after one."""
        prefix = self.all_events + group
        return prefix_end(prefix + after) if after else prefix, prefix_end(prefix)

    def events_of(self, group: bytes, user: bytes) -> Range:
        """The range of a user's events in a group, in commit order."""
        return below(self.all_events + group + user)

    def user_of(self, group: bytes, key: bytes) -> bytes:
        """The user in the key of an event of a group."""
        return key[len(self.all_events) + len(group) : -ID_BYTES]

    def names_of(self, key: bytes) -> bytes:
        """The group and the user in the key of an event of any group, as one encoded pair."""
        return array_head(2) + key[len(self.all_events) : -ID_BYTES]

    def new_group_message(self, group: bytes, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for a message to a group."""
        return stamped(self.all_group_messages + group, _NUMBER.pack(counter))

    def group_messages(self, group: bytes) -> Range:
        """The range of a group's messages that are not delivered to all of its members yet, in commit order."""
        return below(self.all_group_messages + group)

    def new_group_text(self, group: bytes, counter: int) -> bytes:
        """The key argument of `set_versionstamped_key` for the text of a message to a group."""
        return stamped(self.all_group_texts + group, _NUMBER.pack(counter))

    def group_text(self, group: bytes, id_: bytes) -> bytes:
        """The key of the text of a message to a group; with less than an id, a key before those of later texts."""
        return self.all_group_texts + group + id_

    def undelivered(self, group: bytes) -> bytes:
        """The key that exists while a group has messages to deliver."""
        return self.all_undelivered(bucket_of(group))[0] + group

    def all_undelivered(self, bucket: int) -> Range:
        """The range of the `undelivered` keys of a bucket's groups."""
        return below(self.prefix + b"w" + _BUCKET.pack(bucket))

    def delivering(self, bucket: int) -> bytes:
        """The key that exists while a group of a bucket has messages to deliver."""
        return self.prefix + b"v" + _BUCKET.pack(bucket)

    def delivery(self, group: bytes) -> bytes:
        """The key of the progress of a group's deliveries. Deliveries read and write it as a lock."""
        return self.prefix + b"h" + group


def encode_name(what: str, name: Any) -> bytes:
    """The name of a receiver, group, user or terminal in CBOR; raises `InvalidData` or `TooLarge`.

    `what` is the noun for it in messages. An empty name is refused: it is almost surely a variable that was not set.
    """
    if not _is_name(name):
        raise InvalidData(
            f"expected a {what} to be str, int, bytes or a tuple of them, not empty, got: {codec.shown(name)}"
        )
    data = codec.encode(name)
    if len(data) > MAX_NAME_BYTES:
        raise TooLarge(f"a {what} of {len(data):,} bytes exceeds the limit of {MAX_NAME_BYTES:,}")
    return data


def decode_name(data: bytes) -> Any:
    """The inverse of `encode_name`; raises `CorruptData`."""
    return as_name(codec.decode(data))


def as_name(decoded: Any) -> Any:
    """The name as the application gave it: CBOR decodes tuples as lists."""
    return tuple(map(as_name, decoded)) if isinstance(decoded, list) else decoded


def _is_name(name: object) -> bool:
    if isinstance(name, tuple):
        return bool(name) and all(map(_is_name, name))
    return (
        bool(name) if isinstance(name, str | bytes) else isinstance(name, int) and not isinstance(name, bool)
    )


def bucket_of(name: bytes) -> int:
    """The bucket of a receiver or a group."""
    return crc32(name) % BUCKETS


def check_id(id_: object) -> bytes:
    """The id itself, or empty bytes for the beginning; raises `InvalidData` if no message can have this id."""
    if not isinstance(id_, bytes) or len(id_) not in (0, ID_BYTES):
        raise InvalidData(
            f"expected the id of a message of {ID_BYTES} bytes, or none, got: {codec.shown(id_)}"
        )
    return id_


def id_of(key: bytes) -> bytes:
    """The id in the key of a message."""
    return key[-ID_BYTES:]


def split_mark(data: bytes | None) -> tuple[bytes, int]:
    """The inverse of `mark`; empty bytes and 0 for None. Raises `CorruptData`."""
    if data is None:
        return b"", 0
    number = _NUMBER.unpack_from(data, ID_BYTES)[0] if len(data) == ID_BYTES + _NUMBER.size else None
    if number is None or not codec.is_int64(
        number
    ):  # a greater number would leave no room for those after it
        raise CorruptData(f"a receiver's last message is not one that cq wrote: {data[:40]!r}")
    return data[:ID_BYTES], number


def mark(id_: bytes, number: int) -> bytes:
    """The stored form of the id and number of a message."""
    return id_ + _NUMBER.pack(number)


def split_removed(data: bytes | None) -> tuple[bytes, int, int]:
    """Id and number in the value of `removed`, and how many of the removed messages counted as unread.

    Without such a count all counted. Raises `CorruptData`.
    """
    whole = None if data is None else data[: ID_BYTES + _NUMBER.size]
    id_, number = split_mark(whole)
    rest = (data or b"")[ID_BYTES + _NUMBER.size :]
    return id_, number, split_mark(id_ + rest)[1] if rest else number


def removed_mark(id_: bytes, number: int, counted: int) -> bytes:
    """The value of `removed` in a feed with unread counts."""
    return mark(id_, number) + _NUMBER.pack(counted)


def versionstamp_of_id(id_: bytes) -> bytes:
    """The versionstamp in an id."""
    return id_[:VERSIONSTAMP_BYTES]


def first_id_at(version: int) -> bytes:
    """The lowest possible id of a message of this commit version."""
    return max(0, version).to_bytes(8, "big") + b"\x00" * (ID_BYTES - 8)


def _after(prefix: bytes, id_: bytes) -> bytes:
    # The first key after that of the id. Empty bytes are the beginning.
    return prefix + id_ + b"\x00" if id_ else prefix
