"""Parses keys of the store strictly, to find those that cq cannot have written.

Passes and reads trust the keys in their ranges. This module does not: each function takes the rest of a key after its
part of the layout, and raises `CorruptData` for another form than `cq.keys` builds.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

from cq.config.store_id import STORE_ID_BYTES
from cq.errors import CorruptData
from cq.keys import EMITTER_ID_BYTES, VERSIONSTAMP_BYTES, after, prefix_end
from cq.keys.answers import GROUP_BYTES, TICKET_BYTES

PARTS: Final = frozenset("Aabdeghijklmnoqrstuvwxyz")
"""The letters that follow a queue's prefix in keys."""
SINGLE: Final = ("config", "flags", "full", "purge")
"""The parts of a single key each."""
UNKNOWN: Final = ""

_PAIR: Final = Struct(">II")
_NUMBER: Final = Struct(">I")
_LENGTH: Final = Struct(">H")
_TIME: Final = Struct(">Q")
_ROW: Final = Struct(f">II{VERSIONSTAMP_BYTES}sQ")
_ATTEMPT: Final = Struct(">IIQ")
_PLAIN: Final = frozenset(range(32, 127)) - {0x5C}  # the backslash begins an escape


def shown(key: bytes) -> str:
    r"""Return a key of the store as text in one line: ASCII unchanged, other bytes and the backslash in hexadecimal.

    >>> shown(b"cq/q/words/n\x00\x01")
    'cq/q/words/n\\x00\\x01'
    """
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in key)


def part_of(rest: bytes) -> tuple[str, bytes]:
    """Return the part of the layout to which a key after a queue's prefix belongs, or `UNKNOWN`, and the rest.

    >>> part_of(b"flags"), part_of(b"lfile")
    (('flags', b''), ('l', b'file'))
    """
    name = rest.decode("latin-1")
    if name in SINGLE:
        return name, b""
    return (name[:1], rest[1:]) if name[:1] in PARTS else (UNKNOWN, rest)


class RowPlace(NamedTuple):
    """The fields of a queued row's key."""

    generation: int
    bucket: int
    versionstamp: bytes


def parse_row(rest: bytes) -> RowPlace:
    """Parse the key of a queued row."""
    return RowPlace(*_fields(_ROW, rest)[:3])


def row_in(key: bytes, bucket: int) -> bytes:
    """Return the key of a queued row moved to another bucket of its generation."""
    begin = len(key) - _ROW.size + _NUMBER.size
    return key[:begin] + _NUMBER.pack(bucket) + key[begin + _NUMBER.size :]


def parse_bucket(rest: bytes) -> tuple[int, int]:
    """Parse the key of a notification or of a bucket's state: generation and bucket."""
    generation, bucket = _fields(_PAIR, rest)
    return generation, bucket


def check_attempt_key(rest: bytes) -> None:
    """Check the key of a note of an attempt."""
    _fields(_ATTEMPT, rest)


def check_emitter_key(rest: bytes) -> None:
    """Check the key of an emitter's latest flush: the emitter's id."""
    _check(len(rest) == EMITTER_ID_BYTES)


def check_received_key(rest: bytes) -> None:
    """Check the key of the position up to which another queue was forwarded into this one."""
    name = rest[STORE_ID_BYTES + _NUMBER.size :]
    _check(len(name) > 0 and name.isascii())


def parse_marker(rest: bytes) -> bytes:
    """Parse the key of an operation id's marker: the versionstamp."""
    operation, stamp = _counted(rest, VERSIONSTAMP_BYTES)
    _check(len(operation) > 0)
    return stamp


def parse_value(rest: bytes) -> tuple[int, bytes]:
    """Parse the key of a current value or of staged updates: hash and encoded key."""
    _check(len(rest) > _NUMBER.size)
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def parse_aside(rest: bytes) -> tuple[int, bytes]:
    """Parse the key of a piece set aside: hash and encoded key."""
    _check(len(rest) >= _NUMBER.size)
    encoded, _ = _counted(rest[_NUMBER.size :], VERSIONSTAMP_BYTES + _NUMBER.size)
    return _NUMBER.unpack_from(rest)[0], encoded


def parse_missed(rest: bytes) -> tuple[int | None, int, bytes]:
    """Parse the key of a missed report: observer's generation (None: a note or a retry), hash and encoded key."""
    _check(rest[:1] in (b"g", b"n", b"r"))
    generation, place = parse_observer_data(rest[1:]) if rest[:1] == b"g" else (None, rest[1:])
    return generation, *parse_value(place)


def parse_expiry(rest: bytes) -> tuple[int | None, int, bytes]:
    """Parse a key of an expiry: time (None: of a stored time), hash and encoded key (empty: of no key)."""
    if rest in (b"c", b"p", b"x"):
        return None, 0, b""
    _check(rest[:1] in (b"d", b"l"))
    if rest[:1] == b"l":
        return None, *parse_value(rest[1:])
    _check(len(rest) > 1 + _TIME.size)
    return _TIME.unpack_from(rest, 1)[0], *parse_value(rest[1 + _TIME.size :])


def parse_answer(rest: bytes) -> tuple[bytes, bytes]:
    """Parse a key of the answers: its kind ("a", "l" of a large answer, "d" or "w") and the rest."""
    kind, rest = rest[:1], rest[1:]
    if kind == b"a" and len(rest) == GROUP_BYTES + 2:
        kind = b"l"
    lengths = {b"a": GROUP_BYTES, b"l": GROUP_BYTES + 2, b"d": VERSIONSTAMP_BYTES + _NUMBER.size}
    _check(len(rest) == lengths.get(kind, TICKET_BYTES))
    _check(kind in (*lengths, b"w"))
    return kind, rest


def parse_document(rest: bytes) -> bytes:
    """Parse the key of a document: its id."""
    document, _ = _counted(rest, 0)
    _check(len(document) > 0)
    return document


def parse_piece(rest: bytes) -> tuple[bytes, int]:
    """Parse the key of a piece of a document's counts: the document's id and the part."""
    document, numbers = _counted(rest, _PAIR.size)
    _check(len(document) > 0)
    return document, _PAIR.unpack(numbers)[0]


def parse_observer_data(rest: bytes) -> tuple[int, bytes]:
    """Parse a key of an observer's data: the generation and the rest."""
    _check(len(rest) >= _NUMBER.size)
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def check_stamp(value: bytes) -> None:
    """Check a value: a versionstamp."""
    if len(value) != VERSIONSTAMP_BYTES:
        raise CorruptData("not a versionstamp")


def after_orphans(prefix: bytes, rest: bytes) -> bytes | None:
    """Return the first key after the keys of this kind, if they can exist without their queue; None if not.

    Export queues need no configuration. A worker that has not noticed a deletion can still write its note of an
    attempt, notify the publisher of the queue's clouds, or note a failure of the queue's outbox.
    """
    if rest[:1] in (b"a", b"e", b"g"):
        return prefix_end(prefix + rest[:1])
    return after(prefix + rest) if rest[:1] == b"t" and is_wake_up(rest[1 + _NUMBER.size :]) else None


def is_wake_up(tail: bytes) -> bool:
    """Return whether the rest of a key after an observer's generation is a publisher's notification."""
    return tail == b"n"


def _fields(form: Struct, rest: bytes) -> tuple[Any, ...]:
    _check(len(rest) == form.size)
    return form.unpack(rest)


def _counted(rest: bytes, tail: int) -> tuple[bytes, bytes]:
    """Split the rest of a key into the bytes that a length of two bytes precedes, and `tail` bytes after them."""
    _check(len(rest) >= _LENGTH.size)
    end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
    _check(len(rest) == end + tail)
    return rest[_LENGTH.size : end], rest[end:]


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("cq writes no key of this form")
