"""Parses keys of the store strictly, to find those that cq cannot have written.

Passes and reads trust the keys in their ranges. This module does not: each function raises `CorruptData` for a key of
another form than `cq.keys` builds.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from cq.config.store_id import STORE_ID_BYTES
from cq.errors import CorruptData
from cq.keys import EMITTER_ID_BYTES, QUEUES, ROOT, VERSIONSTAMP_BYTES, QueueKeys, prefix_end
from cq.keys.foreign import later_than

PARTS: Final = frozenset("abdeijklmnorstuvwxyz")
"""The letters that follow a queue's prefix in keys."""
SINGLE: Final = ("config", "flags", "full", "purge")
"""The parts of a single key each."""
UNKNOWN: Final = ""

_PAIR: Final = Struct(">II")
_NUMBER: Final = Struct(">I")
_LENGTH: Final = Struct(">H")
_COUNTER_BYTES: Final = 8
_ROW_BYTES: Final = _PAIR.size + VERSIONSTAMP_BYTES + _COUNTER_BYTES
_WORKER_BYTES: Final = 8
_PLAIN: Final = frozenset(range(32, 127)) - {0x5C}  # the backslash begins an escape


def shown(key: bytes) -> str:
    r"""Return a key of the store as text in one line: ASCII unchanged, other bytes and the backslash in hexadecimal.

    >>> shown(b"cq/q/words/n\x00\x01")
    'cq/q/words/n\\x00\\x01'
    """
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in key)


def part_of(queue: QueueKeys, key: bytes) -> tuple[str, bytes]:
    """Return the part of the key layout that a queue's key belongs to, or `UNKNOWN`, and the rest of the key.

    >>> part_of(QueueKeys("words"), b"cq/q/words/flags"), part_of(QueueKeys("words"), b"cq/q/words/lfile")
    (('flags', b''), ('l', b'file'))
    """
    rest = key[len(queue.prefix) :]
    for name in SINGLE:
        if rest == name.encode():
            return name, b""
    letter = rest[:1].decode("latin-1")
    return (letter, rest[1:]) if letter in PARTS else (UNKNOWN, rest)


def check_received(rest: bytes) -> None:
    """Check the key of the position up to which another queue was forwarded into this one."""
    _check(len(rest) > STORE_ID_BYTES + _NUMBER.size, "forwarded queues")
    _text(rest[STORE_ID_BYTES + _NUMBER.size :], "forwarded queues")


class RowPlace(NamedTuple):
    """The fields of a queued row's key."""

    generation: int
    bucket: int
    versionstamp: bytes


def parse_row(rest: bytes) -> RowPlace:
    """Parse the key of a queued row."""
    _check(len(rest) == _ROW_BYTES, "a queued row")
    generation, bucket = _PAIR.unpack_from(rest)
    return RowPlace(generation, bucket, rest[_PAIR.size : -_COUNTER_BYTES])


def row_in(key: bytes, bucket: int) -> bytes:
    """Return the key of a queued row moved to another bucket of its generation."""
    begin = len(key) - _ROW_BYTES + _NUMBER.size
    return key[:begin] + _NUMBER.pack(bucket) + key[begin + _NUMBER.size :]


def rows_later_than(queue: QueueKeys, generation: int, bucket: int, version: int) -> bytes:
    """Return the first key of a bucket's rows that can be stamped later than a version."""
    return later_than(queue.rows(generation, bucket)[0], version)


def parse_bucket(rest: bytes) -> tuple[int, int]:
    """Parse the key of a notification or of a bucket's state: generation and bucket."""
    _check(len(rest) == _PAIR.size, "a bucket")
    generation, bucket = _PAIR.unpack(rest)
    return generation, bucket


def check_attempt(rest: bytes) -> None:
    """Check the key of a note of an attempt."""
    _check(len(rest) == _PAIR.size + _WORKER_BYTES, "a note of an attempt")


def parse_marker(rest: bytes) -> tuple[bytes, bytes]:
    """Parse the key of a marker: operation id and versionstamp."""
    operation, stamp = _counted(rest, "a marker")
    _check(len(operation) > 0 and len(stamp) == VERSIONSTAMP_BYTES, "a marker")
    return operation, stamp


def parse_emitter(rest: bytes) -> bytes:
    """Parse the key of an emitter's latest flush: the emitter's id."""
    _check(len(rest) == EMITTER_ID_BYTES, "an emitter's latest flush")
    return rest


def parse_value(rest: bytes) -> tuple[int, bytes]:
    """Parse the key of a current value or of staged updates: hash and encoded key."""
    _check(len(rest) > _NUMBER.size, "a value")
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def parse_aside(rest: bytes) -> tuple[int, bytes]:
    """Parse the key of a piece set aside: hash and encoded key."""
    _check(len(rest) >= _NUMBER.size, "updates set aside")
    encoded, stamp = _counted(rest[_NUMBER.size :], "updates set aside")
    _check(len(stamp) == VERSIONSTAMP_BYTES + _NUMBER.size, "updates set aside")
    return _NUMBER.unpack_from(rest)[0], encoded


def parse_missed(rest: bytes) -> tuple[int | None, int, bytes]:
    """Parse the key of a missed report: observer's generation (None: a note or a retry), hash and encoded key."""
    generation = None
    if rest[:1] == b"g":
        _check(len(rest) > 1 + _NUMBER.size, "a missed report")
        (generation,) = _NUMBER.unpack_from(rest, 1)
        rest = rest[_NUMBER.size :]
    else:
        _check(rest[:1] in (b"n", b"r"), "a missed report")
    _check(len(rest) > 1 + _NUMBER.size, "a missed report")
    return generation, _NUMBER.unpack_from(rest, 1)[0], rest[1 + _NUMBER.size :]


def parse_document(rest: bytes) -> bytes:
    """Parse the key of a document: its id."""
    document, tail = _counted(rest, "a document")
    _check(len(document) > 0 and not tail, "a document")
    return document


def parse_piece(rest: bytes) -> tuple[bytes, int]:
    """Parse the key of a piece of a document's counts: the document's id and the part."""
    document, tail = _counted(rest, "a document's counts")
    _check(len(document) > 0 and len(tail) == _PAIR.size, "a document's counts")
    return document, _PAIR.unpack(tail)[0]


def parse_observer_data(rest: bytes) -> tuple[int, bytes]:
    """Parse a key of an observer's data: the generation and the rest."""
    _check(len(rest) >= _NUMBER.size, "an observer's data")
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def parse_published(rest: bytes) -> tuple[str, bytes]:
    """Parse a key of an observer's published data: the observer's name and the rest."""
    name, end, tail = rest.partition(b"\x00")
    _check(bool(end), "an observer's published data")
    return _text(name, "an observer's published data"), tail


def parse_current(rest: bytes) -> str:
    """Parse the key of an observer's current generation: the observer's name."""
    return _text(rest, "the generation of an observer's data")


def queue_of(key: bytes) -> tuple[str, bytes]:
    """Return a queue's name and prefix from any of its keys."""
    name, end, _ = key[len(_QUEUES_BELOW) :].partition(b"/")
    _check(bool(end), "a queue")
    return _text(name, "a queue"), _QUEUES_BELOW + name + end


def queue_in_list(key: bytes) -> str:
    """Return the name in a key of the store's list of queues."""
    return _text(key[len(QUEUES) :], "the list of queues")


def below_all_queues() -> tuple[bytes, bytes]:
    """Return the range of the keys of all queues, configured or not."""
    return _QUEUES_BELOW, prefix_end(_QUEUES_BELOW)


def may_outlive_queue(rest: bytes) -> bool:
    """Return whether a key below a queue's prefix can exist without the queue.

    Export queues need no configuration. A worker that has not noticed a deletion can still write its note of an
    attempt, or notify the publisher of the queue's clouds.
    """
    return rest[:1] in (b"a", b"e") or (rest[:1] == b"t" and rest[1 + _NUMBER.size :] == b"n")


def key_after_part(prefix: bytes, rest: bytes) -> bytes:
    """Return the first key after the keys of this kind, which can exist without the queue."""
    return prefix + rest + b"\x00" if rest[:1] == b"t" else prefix_end(prefix + rest[:1])


def is_wake_up(tail: bytes) -> bool:
    """Return whether the rest of a key after an observer's generation is a publisher's notification."""
    return tail == b"n"


_QUEUES_BELOW: Final = ROOT + b"q/"


def _counted(rest: bytes, what: str) -> tuple[bytes, bytes]:
    """Split the rest of a key into the bytes that a length of two bytes precedes, and the bytes after them."""
    _check(len(rest) >= _LENGTH.size, what)
    end = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
    _check(len(rest) >= end, what)
    return rest[_LENGTH.size : end], rest[end:]


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptData(f"the key is not built as one of {what}") from None


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise CorruptData(f"the key is not built as one of {what}")
