"""CBOR of many simple items, ints and short strings, at a fraction of what the encoder and the decoder cost for each.

Encoded, such an item is a head and the bytes of the string (RFC 8949, 3). And as an item says how long it is, items one
behind the other can be taken apart in one way only: they are decoded as one array, which is safe where each has been
seen to be just one, and nothing besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import cbor2

# How long an int, or a short string of bytes or text, is in CBOR by its first byte; longer strings say so in the next.
_LENGTHS: Final = {
    **{
        bytes((sign | first,)): 1 + (1 << first - 24 if first >= 24 else 0)
        for sign in (0x00, 0x20)
        for first in range(28)
    },
    **{bytes((kind | length,)): 1 + length for kind in (0x40, 0x60) for length in range(24)},
}
_LONGER: Final = (b"\x58", b"\x78")


def are_simple(many: Sequence[bytes]) -> bool:
    """Whether each is one int of up to 64 bits, or a string of up to 255 bytes, and nothing besides."""
    lengths = list(map(_LENGTHS.get, [data[:1] for data in many]))
    if None in lengths:
        lengths = [
            2 + data[1] if length is None and data[:1] in _LONGER and len(data) > 1 else length
            for data, length in zip(many, lengths, strict=True)
        ]
    return lengths == list(map(len, many))


def decode_simple(many: Sequence[bytes]) -> list[int | bytes | str]:
    """The items, all of which are simple; raises what the decoder does for text that is none."""
    return list(cbor2.loads(array_head(len(many)) + b"".join(many)))


_LONGEST: Final = 255
_TEXT: Final = [cbor2.dumps("x" * length)[: -length or None] for length in range(_LONGEST + 1)]
_BYTES: Final = [cbor2.dumps(bytes(length))[: -length or None] for length in range(_LONGEST + 1)]
_SMALL: Final = [cbor2.dumps(number) for number in range(256)]
_one = Struct(">BB").pack
_two = Struct(">BH").pack
_four = Struct(">BI").pack


def array_head(length: int) -> bytes:
    """What an array of so many items begins with; they follow one behind the other."""
    if length < 24:
        return bytes((0x80 | length,))
    return (
        _one(0x98, length)
        if length < 1 << 8
        else _two(0x99, length)
        if length < 1 << 16
        else _four(0x9A, length)
    )


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Each in CBOR; raises `UnicodeEncodeError` for what is no text."""
    parts = list(map(str.encode, texts))
    if max(map(len, parts), default=0) > _LONGEST:
        return list(map(cbor2.dumps, texts))
    return [_TEXT[len(part)] + part for part in parts]


def encode_strings(strings: Sequence[bytes]) -> list[bytes]:
    """Each in CBOR."""
    if max(map(len, strings), default=0) > _LONGEST:
        return list(map(cbor2.dumps, strings))
    return [_BYTES[len(string)] + string for string in strings]


def encode_ints(numbers: Sequence[int]) -> list[bytes]:
    """Each in CBOR."""
    return [
        _SMALL[number]
        if 0 <= number < 256
        else _two(0x19, number)
        if 0 < number < 1 << 16
        else _four(0x1A, number)
        if 0 < number < 1 << 32
        else cbor2.dumps(number)
        for number in numbers
    ]
