"""Taking keys of cq's apart strictly: for whoever looks for those that cq cannot have written.

Passes and reads trust the keys that they find in their ranges. What is here trusts none: each function raises
`CorruptData` for a key that is not built as `cq.keys` builds them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from cq.config.store_id import STORE_ID_BYTES
from cq.errors import CorruptData
from cq.keys import EMITTER_ID_BYTES, QUEUES, ROOT, VERSIONSTAMP_BYTES, QueueKeys, prefix_end
from cq.keys.foreign import later_than

PARTS: Final = frozenset("abdeijklmnorstuvwxyz")
"""The letters that begin a key behind a queue's prefix."""
SINGLE: Final = ("config", "flags", "full", "purge")
"""The parts that are one key each."""
UNKNOWN: Final = ""

_PAIR: Final = Struct(">II")
_NUMBER: Final = Struct(">I")
_LENGTH: Final = Struct(">H")
_COUNTER_BYTES: Final = 8
_ROW_BYTES: Final = _PAIR.size + VERSIONSTAMP_BYTES + _COUNTER_BYTES
_WORKER_BYTES: Final = 8
_PLAIN: Final = frozenset(range(32, 127)) - {0x5C}


def shown(key: bytes) -> str:
    r"""A key of the store as text in one line: ASCII as it is, other bytes and the backslash in hexadecimal.

    >>> shown(b"cq/q/words/n\x00\x01")
    'cq/q/words/n\\x00\\x01'
    """
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in key)


def part_of(queue: QueueKeys, key: bytes) -> tuple[str, bytes]:
    """The part of a queue's keys that one below its prefix belongs to, and what stands behind it; or `UNKNOWN`.

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
    """Of the key of what a queue keeps of one that is forwarded into it."""
    _check(len(rest) > STORE_ID_BYTES + _NUMBER.size, "what is kept of a queue that is forwarded")
    _text(rest[STORE_ID_BYTES + _NUMBER.size :], "what is kept of a queue that is forwarded")


class RowPlace(NamedTuple):
    """What the key of a queued row says."""

    generation: int
    bucket: int
    versionstamp: bytes


def parse_row(rest: bytes) -> RowPlace:
    """Of the key of a queued row."""
    _check(len(rest) == _ROW_BYTES, "a queued row")
    generation, bucket = _PAIR.unpack_from(rest)
    return RowPlace(generation, bucket, rest[_PAIR.size : -_COUNTER_BYTES])


def row_in(key: bytes, bucket: int) -> bytes:
    """The key of a queued row as it would be in another bucket of its generation."""
    begin = len(key) - _ROW_BYTES + _NUMBER.size
    return key[:begin] + _NUMBER.pack(bucket) + key[begin + _NUMBER.size :]


def rows_later_than(queue: QueueKeys, generation: int, bucket: int, version: int) -> bytes:
    """The first key of a bucket's rows that could be stamped later than a version."""
    return later_than(queue.rows(generation, bucket)[0], version)


def parse_bucket(rest: bytes) -> tuple[int, int]:
    """Generation and bucket, of the key of a notification or of a bucket's state."""
    _check(len(rest) == _PAIR.size, "a bucket")
    generation, bucket = _PAIR.unpack(rest)
    return generation, bucket


def check_attempt(rest: bytes) -> None:
    """Of the key of the note of an attempt."""
    _check(len(rest) == _PAIR.size + _WORKER_BYTES, "a note of an attempt")


def parse_marker(rest: bytes) -> tuple[bytes, bytes]:
    """Operation id and versionstamp, of the key of a marker."""
    operation, stamp = _counted(rest, "a marker")
    _check(len(operation) > 0 and len(stamp) == VERSIONSTAMP_BYTES, "a marker")
    return operation, stamp


def parse_emitter(rest: bytes) -> bytes:
    """The emitter's id, of the key that says which of its flushes was committed last."""
    _check(len(rest) == EMITTER_ID_BYTES, "an emitter's latest flush")
    return rest


def parse_value(rest: bytes) -> tuple[int, bytes]:
    """Hash and encoded key, of the key of a current or a staged value."""
    _check(len(rest) > _NUMBER.size, "a value")
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def parse_aside(rest: bytes) -> tuple[int, bytes]:
    """Hash and encoded key, of the key of a piece that was set aside."""
    _check(len(rest) >= _NUMBER.size, "what was set aside")
    encoded, stamp = _counted(rest[_NUMBER.size :], "what was set aside")
    _check(len(stamp) == VERSIONSTAMP_BYTES + _NUMBER.size, "what was set aside")
    return _NUMBER.unpack_from(rest)[0], encoded


def parse_missed(rest: bytes) -> tuple[int | None, int, bytes]:
    """Generation of an observer (None for a note or a retry), hash and encoded key, of the key of a missed report."""
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
    """The id, of the key of a document."""
    document, behind = _counted(rest, "a document")
    _check(len(document) > 0 and not behind, "a document")
    return document


def parse_piece(rest: bytes) -> tuple[bytes, int]:
    """A document's id and the part, of the key of a piece of its counts."""
    document, behind = _counted(rest, "a document's counts")
    _check(len(document) > 0 and len(behind) == _PAIR.size, "a document's counts")
    return document, _PAIR.unpack(behind)[0]


def parse_observer_data(rest: bytes) -> tuple[int, bytes]:
    """The generation, and what stands behind it, of a key of what an observer keeps."""
    _check(len(rest) >= _NUMBER.size, "what an observer keeps")
    return _NUMBER.unpack_from(rest)[0], rest[_NUMBER.size :]


def parse_published(rest: bytes) -> tuple[str, bytes]:
    """The observer's name, and what stands behind it, of a key of what an observer publishes."""
    name, end, behind = rest.partition(b"\x00")
    _check(bool(end), "what an observer publishes")
    return _text(name, "what an observer publishes"), behind


def parse_current(rest: bytes) -> str:
    """The observer's name, of the key that says which generation of its data is to be read."""
    return _text(rest, "the generation of an observer's data")


def queue_of(key: bytes) -> tuple[str, bytes]:
    """The name in a key below the prefix of all queues, and the queue's prefix."""
    name, end, _ = key[len(_QUEUES_BELOW) :].partition(b"/")
    _check(bool(end), "a queue")
    return _text(name, "a queue"), _QUEUES_BELOW + name + end


def queue_in_list(key: bytes) -> str:
    """The name in a key of the store's list of queues."""
    return _text(key[len(QUEUES) :], "the list of queues")


def below_all_queues() -> tuple[bytes, bytes]:
    """The range of what queues have, configured or not."""
    return _QUEUES_BELOW, prefix_end(_QUEUES_BELOW)


def may_outlive_queue(rest: bytes) -> bool:
    """Whether a key behind a queue's prefix may be there although the queue is not.

    Export queues need no configuration. And a worker that has not heard of a deletion may yet write its note of an
    attempt, or wake the publisher of the queue's clouds.
    """
    return rest[:1] in (b"a", b"e") or (rest[:1] == b"t" and rest[1 + _NUMBER.size :] == b"n")


def key_after_part(prefix: bytes, rest: bytes) -> bytes:
    """The first key that may be none of those left behind like this one."""
    return prefix + rest + b"\x00" if rest[:1] == b"t" else prefix_end(prefix + rest[:1])


def is_wake_up(tail: bytes) -> bool:
    """Whether what stands behind an observer's generation is the notification of a publisher."""
    return tail == b"n"


_QUEUES_BELOW: Final = ROOT + b"q/"


def _counted(rest: bytes, what: str) -> tuple[bytes, bytes]:
    """What a length of two bytes stands before, and what follows."""
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
