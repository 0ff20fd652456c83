"""Parses keys of the store strictly, to find those that cq cannot have written.

Passes and reads trust the keys in their ranges. This module does not: a form, as in the tables of `cq.keys`, describes
the rest of a key after its part of the layout, and `parse` raises `CorruptData` for another one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from cq.errors import CorruptData
from cq.keys import VERSIONSTAMP_BYTES, after, prefix_end

UNKNOWN: Final = ""

_NUMBERS: Final = (4, 8)  # lengths of numbers; other fields are bytes
_PLAIN: Final = frozenset(range(32, 127)) - {0x5C}  # the backslash begins an escape


def shown(key: bytes) -> str:
    r"""Return a key of the store as text in one line: ASCII unchanged, other bytes and the backslash in hexadecimal.

    >>> shown(b"cq/q/words/n\x00\x01")
    'cq/q/words/n\\x00\\x01'
    """
    return "".join(chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in key)


def part_of(rest: bytes, parts: Container[str]) -> tuple[str, bytes]:
    """Return the part of the layout to which a key after a queue's prefix belongs, or `UNKNOWN`, and the rest.

    >>> part_of(b"flags", ("l", "flags")), part_of(b"lfile", ("l", "flags"))
    (('flags', b''), ('l', b'file'))
    """
    name = rest.decode("latin-1")
    for part in (name, name[:1]):
        if part in parts:
            return part, rest[len(part) :]
    return UNKNOWN, rest


def parse(form: str, rest: bytes) -> list[Any]:
    r"""Return the fields of the rest of a key.

    A number after the name of a field is its length; the last field may be without one, and has at least one byte.
    `length2` precedes a field of that length, which is empty only if its name ends in a question mark. Fields of 4 and
    8 bytes are numbers.

    >>> parse("g4 versionstamp10 length2 id", bytes(14) + b"\x00\x01x")
    [0, b'\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00', b'x']
    """
    found: list[Any] = []
    counted = None
    for name, size in _fields(form):
        length = counted if counted is not None else len(rest) if size is None else size
        field, rest = rest[:length], rest[length:]
        counted = None
        if len(field) < length or not (field or name.endswith("?")):
            raise CorruptData("cq writes no key of this form")
        if name == "length":
            counted = int.from_bytes(field, "big")
        else:
            found.append(int.from_bytes(field, "big") if size in _NUMBERS else field)
    if rest:
        raise CorruptData("cq writes no key of this form")
    return found


def parse_by_letter(forms: Mapping[bytes, str], rest: bytes) -> list[Any]:
    """Return the fields of the rest of a key that begins with a letter, by the form of the letter."""
    if rest[:1] not in forms:
        raise CorruptData("cq writes no key of this form")
    return parse(forms[rest[:1]], rest[1:])


@cache
def _fields(form: str) -> list[tuple[str, int | None]]:
    """The names of the fields, and their lengths."""
    found = re.findall(r"([a-z?]+)(\d*)", form)
    return [(name, int(size) if size else None) for name, size in found]


class RowPlace(NamedTuple):
    """The fields of a queued row's key."""

    generation: int
    bucket: int
    versionstamp: bytes
    counter: int


def check_stamp(value: bytes) -> None:
    """Check a value: a versionstamp."""
    if len(value) != VERSIONSTAMP_BYTES:
        raise CorruptData("not a versionstamp")


def after_orphans(prefix: bytes, rest: bytes) -> bytes | None:
    """Return the first key after the keys of this kind, if they can exist without their queue; None if not.

    A worker that has not noticed a deletion can still write its note of an attempt, notify the publisher of the queue's
    clouds, or note a failure of the queue's outbox.
    """
    if rest[:1] in (b"a", b"g"):
        return prefix_end(prefix + rest[:1])
    return after(prefix + rest) if rest[:1] == b"t" and is_wake_up(rest[5:]) else None


def is_wake_up(tail: bytes) -> bool:
    """Return whether the rest of a key after an observer's generation is a publisher's notification."""
    return tail == b"n"
