"""Fast CBOR of many simple items: ints of up to 64 bits, and strings of up to 255 bytes.

An encoded item is a head, and for a string its bytes (RFC 8949, section 3). Every item contains its length, so a
sequence of items can be split in only one way. Therefore many items are decoded as one array, after a check that each
is exactly one simple item. This costs a fraction of one call of the decoder for each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import cbor2

# Length of an int, or of a string of up to 23 bytes, by its first byte. Longer strings have it in the next byte.
_LENGTHS: Final = {
    **{
        bytes((sign | first,)): 1 + (1 << first - 24 if first >= 24 else 0)
        for sign in (0x00, 0x20)
        for first in range(28)
    },
    **{bytes((kind | length,)): 1 + length for kind in (0x40, 0x60) for length in range(24)},
}
_LENGTH_IN_NEXT_BYTE: Final = (b"\x58", b"\x78")


def are_simple(many: Sequence[bytes]) -> bool:
    """Whether each is exactly one int of up to 64 bits, or one string of up to 255 bytes."""
    lengths = list(map(_LENGTHS.get, [data[:1] for data in many]))
    if None in lengths:
        lengths = [
            2 + data[1] if length is None and data[:1] in _LENGTH_IN_NEXT_BYTE and len(data) > 1 else length
            for data, length in zip(many, lengths, strict=True)
        ]
    return lengths == list(map(len, many))


def decode_simple(many: Sequence[bytes]) -> list[int | bytes | str]:
    """The decoded items, which must all be simple; raises the decoder's error for invalid UTF-8."""
    return list(cbor2.loads(array_head(len(many)) + b"".join(many)))


_MAX_STRING_BYTES: Final = 255
_TEXT_HEADS: Final = [cbor2.dumps("x" * length)[: -length or None] for length in range(_MAX_STRING_BYTES + 1)]
_BYTES_HEADS: Final = [
    cbor2.dumps(bytes(length))[: -length or None] for length in range(_MAX_STRING_BYTES + 1)
]
_SMALL_INTS: Final = [cbor2.dumps(number) for number in range(256)]
_pack_1 = Struct(">BB").pack
_pack_2 = Struct(">BH").pack
_pack_4 = Struct(">BI").pack


def array_head(length: int) -> bytes:
    """The head of an array of `length` items; the items follow it."""
    if length < 24:
        return bytes((0x80 | length,))
    return (
        _pack_1(0x98, length)
        if length < 1 << 8
        else _pack_2(0x99, length)
        if length < 1 << 16
        else _pack_4(0x9A, length)
    )


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Each text in CBOR; raises `UnicodeEncodeError` for lone surrogates."""
    parts = list(map(str.encode, texts))
    if max(map(len, parts), default=0) > _MAX_STRING_BYTES:
        return list(map(cbor2.dumps, texts))
    return [_TEXT_HEADS[len(part)] + part for part in parts]


def encode_strings(strings: Sequence[bytes]) -> list[bytes]:
    """Each string of bytes in CBOR."""
    if max(map(len, strings), default=0) > _MAX_STRING_BYTES:
        return list(map(cbor2.dumps, strings))
    return [_BYTES_HEADS[len(string)] + string for string in strings]


def encode_ints(numbers: Sequence[int]) -> list[bytes]:
    """Each int in CBOR; ints beyond the common ranges go through the encoder."""
    return [
        _SMALL_INTS[number]
        if 0 <= number < 256
        else _pack_2(0x19, number)
        if 0 < number < 1 << 16
        else _pack_4(0x1A, number)
        if 0 < number < 1 << 32
        else cbor2.dumps(number)
        for number in numbers
    ]
