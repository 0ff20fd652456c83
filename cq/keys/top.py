"""The keys of a queue's top and of its published clouds, below the prefixes in `cq.keys.queue`."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from cq.encoding.codec import brief
from cq.errors import CorruptData, InvalidData
from cq.keys.queue import QueueKeys, below

_LENGTH: Final = Struct(">H")
_VERSION: Final = Struct(">Q")
_PIECE: Final = Struct(">I")
_TIME: Final = Struct(">Q")
_KEPT: Final = Struct(">QQI")
_GROUPS_REMEMBERED: Final = 1_000
MAX_GROUP_BYTES: Final = 500


class TopKeys:
    """The keys of one generation of a queue's top. `D` is its prefix; `group` is length2 and text (empty: no group).

    D "i" group place sort_key     score            one entry for each key with a score, the highest first
    D "c" group                    number of the group's entries
    D "r" group length2 bytes      number of the group's entries with a place that begins with these bytes
    D "m" group                    versionstamp of the group's last change, until its cloud is published
    D "n"                          versionstamp of the last change: the notification of the publisher
    D "a"                          exists once the clouds of earlier generations are marked

    Attributes:
        data: the prefix of all data of the generation.
        all_entries, counts, nodes, marks: the prefixes of all entries, of the numbers of entries, of the nodes (numbers
            of entries, from which ranks are computed) and of the marks of all groups; the group follows.
    """

    def __init__(self, queue: QueueKeys, generation: int) -> None:
        self.data = queue.observer_data(generation)
        self.notification = self.data + b"n"
        self.adopted = self.data + b"a"
        self.all_entries = self.data + b"i"
        self.counts = self.data + b"c"
        self.nodes = self.data + b"r"
        self.marks = self.data + b"m"

    def entries(self, group: str | None) -> bytes:
        """The prefix of a group's entries; the place of an entry follows."""
        return self.all_entries + group_bytes(group)

    def count(self, group: str | None) -> bytes:
        """The key of the number of a group's entries."""
        return self.counts + group_bytes(group)

    def nodes_below(self, group: str | None, place: bytes) -> tuple[bytes, bytes]:
        """The range of the child nodes of a node: their beginnings are one byte longer."""
        return below(self.node(group, place + b"\x00")[:-1])

    def node(self, group: str | None, place: bytes) -> bytes:
        """The key of a node: the number of a group's entries with a place that begins with `place`."""
        return self.nodes + group_bytes(group) + _LENGTH.pack(len(place)) + place

    def nodes_before(self, group: str | None, place: bytes) -> tuple[bytes, bytes]:
        """The range of the sibling nodes before a node: they differ from it in the last byte."""
        node = self.node(group, place)
        return node[:-1], node

    def mark(self, group: str | None) -> bytes:
        """The key that exists while a group's cloud may differ from the published one."""
        return self.marks + group_bytes(group)


class CloudKeys:
    """The keys of the published clouds: `Z` is the prefix of the published data of the queue's top.

    Z "h" group                    the cloud, or its head if it is in pieces
    Z "p" group version8 piece4    a piece of a cloud, which never changes
    Z "v" group time8 version8 number4
                                   a kept version, by its time in milliseconds since 1970: as its head was (number 0),
                                   and its pieces (from 1)

    Attributes:
        heads, all_pieces, all_kept: the prefixes of all heads, pieces and kept versions; the group follows.
    """

    def __init__(self, queue: QueueKeys) -> None:
        published = queue.observer_published("top")
        self.heads = published + b"h"
        self.all_pieces = published + b"p"
        self.all_kept = published + b"v"

    def head(self, group: str | None) -> bytes:
        """The key that readers read and watch."""
        return self.heads + group_bytes(group)

    def pieces_of(self, group: str | None) -> bytes:
        """The prefix of the pieces of all versions of a group's cloud."""
        return self.all_pieces + group_bytes(group)

    def pieces(self, group: str | None, version: int) -> bytes:
        """The prefix of the pieces of one version of a group's cloud."""
        return self.pieces_of(group) + _VERSION.pack(version)

    def piece(self, group: str | None, version: int, piece: int) -> bytes:
        """The key of one piece of a cloud."""
        return self.pieces(group, version) + _PIECE.pack(piece)

    def kept_of(self, group: str | None) -> bytes:
        """The prefix of the kept versions of a group's cloud."""
        return self.all_kept + group_bytes(group)

    def kept_from(self, group: str | None, time: int) -> bytes:
        """The first possible key of a kept version that was published at a time, in milliseconds since 1970."""
        return self.kept_of(group) + _TIME.pack(max(0, time))

    def kept(self, group: str | None, time: int, version: int, number: int) -> bytes:
        """The key of the head (number 0) or of a piece of a kept version."""
        return self.kept_of(group) + _KEPT.pack(time, version, number)


@lru_cache(maxsize=_GROUPS_REMEMBERED)
def group_bytes(group: str | None) -> bytes:
    """A group as it is in keys. No group's bytes begin with another's. Raises `InvalidData`."""
    text = b"" if group is None else checked_group(group).encode()
    return _LENGTH.pack(len(text)) + text


def checked_group(group: object) -> str:
    """The group itself; raises `InvalidData` unless it is a text of the permitted size."""
    try:
        size = len(group.encode()) if isinstance(group, str) else 0
    except UnicodeEncodeError:  # a lone surrogate
        size = 0
    if not isinstance(group, str) or not 0 < size <= MAX_GROUP_BYTES:
        raise InvalidData(f"expected a group to be text of 1 to {MAX_GROUP_BYTES} bytes, got: {brief(group)}")
    return group


def group_of(data: bytes) -> str | None:
    """The inverse of `group_bytes`; raises `CorruptData`."""
    return group_named(data[_LENGTH.size :])


def group_named(text: bytes) -> str | None:
    """The group with this text in UTF-8, None if it is empty; raises `CorruptData`."""
    try:
        return text.decode() or None
    except UnicodeDecodeError:
        raise CorruptData(f"the group of a top is not one that cq wrote: {text[:40]!r}") from None


class KeptRow(NamedTuple):
    """What the key of a row of a kept version says, see `CloudKeys.kept`."""

    group: str | None
    time: int
    version: int
    number: int


def split_kept(data: bytes) -> KeptRow:
    """The parts of a kept version's key, without the prefix `CloudKeys.all_kept`; raises `CorruptData`."""
    if len(data) < _LENGTH.size + _KEPT.size:
        raise CorruptData("the key is not one of a kept version of a cloud")
    return KeptRow(group_of(data[: -_KEPT.size]), *_KEPT.unpack(data[-_KEPT.size :]))
