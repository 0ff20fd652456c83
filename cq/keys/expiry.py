"""The keys of a queue's expiry, below `P "q"`; `P` is the prefix of the queue."""

from __future__ import annotations

from struct import Struct
from typing import Final

from cq.errors import CorruptData
from cq.keys.queue import Prefix, QueueKeys, place, prefix_end

_TIME: Final = Struct(">Q")
_HASH: Final = Struct(">I")
TIME_BYTES: Final = _TIME.size
COUNT_BYTES: Final = 8


class ExpiryKeys:
    r"""The keys of a queue's expiry. A time is in seconds since 1970, `h` the hash of the encoded key.

        "d" time8 h4 key   "": the time of a key with a value; it expires a period later   a pass, workers (*)
        "l" h4 key         time8, if keys expire after their latest update                  a pass, workers (*)
        "c"                number of keys that have expired, eight bytes, little-endian     a pass (add)
        "p"                place up to which workers have given times to former values      configure, workers
        "x"                time8: the latest time of a key that has expired by its key      a pass (byte_max)

    (*) only for keys whose values are older than the expiry.

    >>> ExpiryKeys("words").entry(1_000, b"\x00\x00\x00\x02ehello")
    b'cq/q/words/qd\x00\x00\x00\x00\x00\x00\x03\xe8\x00\x00\x00\x02ehello'

    Attributes:
        prefix: the prefix of all keys.
        entries, times: the prefixes of the entries, and of the stored times.
    """

    def __init__(self, name: str) -> None:
        self.prefix = Prefix(QueueKeys(name).prefix + b"q")
        self.progress = self.prefix + b"p"
        self.count = self.prefix + b"c"
        self.latest_expired = self.prefix + b"x"
        self.entries = Prefix(self.prefix + b"d")
        self.times = Prefix(self.prefix + b"l")

    def of_times(self) -> tuple[bytes, bytes]:
        """The range of all keys except `latest_expired`: that a key has expired stays true under another expiry."""
        return self.prefix, self.latest_expired

    def entry(self, time: int, where: bytes) -> bytes:
        """The key of the entry for the key at a place in hash order."""
        return self.entries + _TIME.pack(time) + where

    def entry_at(self, stored: bytes, where: bytes) -> bytes:
        """As `entry`, with the stored bytes of the time."""
        return self.entries + stored + where

    def entries_until(self, time: int) -> tuple[bytes, bytes]:
        """The range of all entries up to and including a time, which may be negative; in the order of their times."""
        return self.entries, self.entries + _TIME.pack(max(0, time + 1))

    def entries_of(self, time: int, first: int, end: int) -> tuple[bytes, bytes]:
        """The range of the entries of a time with hashes from `first` up to `end`, which may be 2**32."""
        prefix = self.entries + _TIME.pack(time)
        return prefix + _HASH.pack(first), prefix_end(prefix) if end >> 32 else prefix + _HASH.pack(end)

    def parse_entry(self, key: bytes) -> tuple[int, bytes]:
        """Time and place in the key of an entry; for a key that is too short, the first ones that sort after it."""
        rest = self.entries.rest(key).ljust(_TIME.size + _HASH.size, b"\x00")
        return _TIME.unpack_from(rest)[0], rest[_TIME.size :]

    def time(self, where: bytes) -> bytes:
        """The key of the stored time of the key at a place in hash order."""
        return self.times + where

    def time_of(self, encoded_key: bytes) -> bytes:
        """The key of the stored time of an encoded key."""
        return self.times + place(encoded_key)


def pack_count(number: int) -> bytes:
    """The operand of an addition to the number of expired keys."""
    return number.to_bytes(COUNT_BYTES, "little")


def parse_count(stored: bytes | None) -> int:
    """The number of expired keys, from its stored bytes; None: no key has expired."""
    return int.from_bytes(stored or b"", "little")


def pack_time(time: int) -> bytes:
    """The stored bytes of a time."""
    return _TIME.pack(time)


def parse_time(stored: bytes) -> int:
    """The inverse of `pack_time`; raises `CorruptData`."""
    if len(stored) != TIME_BYTES:
        raise CorruptData(f"a time of an expiry is not one that cq wrote: {stored[:40]!r}")
    time: int = _TIME.unpack(stored)[0]
    return time


def hash_of(where: bytes) -> int:
    """The hash at the beginning of a place in hash order."""
    hashed: int = _HASH.unpack_from(where)[0]
    return hashed
