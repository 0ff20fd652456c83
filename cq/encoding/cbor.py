"""CBOR encoding of values, and a fast one of many ints of up to 64 bits and strings of up to 255 bytes.

An encoded item is a head, and for a string its bytes (RFC 8949, section 3). To put a known head before the bytes takes
less time than a call of the encoder for each item: docs/understand/benchmarks.md has the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Any, Final

import cbor2

from cq.encoding.sketches import TAG, Sketch

_MAX_STRING_BYTES: Final = 255
_TEXT_HEADS: Final = [cbor2.dumps("x" * length)[: -length or None] for length in range(_MAX_STRING_BYTES + 1)]
_BYTES_HEADS: Final = [
    cbor2.dumps(bytes(length))[: -length or None] for length in range(_MAX_STRING_BYTES + 1)
]
_SMALL_INTS: Final = [cbor2.dumps(number) for number in range(256)]
# The length of an int or a string of up to 23 bytes by its first byte; 0 for the first bytes of other items.
_SHORT_BYTES: Final = (
    ([1] * 24 + [2, 3, 5, 9] + [0] * 4) * 2 + ([length + 1 for length in range(24)] + [0] * 8) * 2 + [0] * 128
)
_pack_1 = Struct(">BB").pack
_pack_2 = Struct(">BH").pack
_pack_4 = Struct(">BI").pack


def _encode_other(encoder: cbor2.CBOREncoder, value: Any) -> None:
    if not isinstance(value, Sketch):
        raise cbor2.CBOREncodeTypeError(f"cannot encode type {type(value)}")
    encoder.encode(cbor2.CBORTag(TAG, value.data))


_SKETCH_HEAD: Final = cbor2.dumps(cbor2.CBORTag(TAG, b""))[:-1]

dumps: Final = partial(cbor2.dumps, default=_encode_other)
"""A value in CBOR, which may be or contain sketches."""


def encode_sketch(sketch: Sketch) -> bytes:
    """A sketch in CBOR: the same bytes as those of `dumps`, which takes ten times as long."""
    return _SKETCH_HEAD + _head(0x40, len(sketch.data)) + sketch.data


def array_head(length: int) -> bytes:
    """The head of an array of `length` items; the items follow it."""
    return _head(0x80, length)


def _head(major: int, length: int) -> bytes:
    """The head of an item of this major type, with its length."""
    if length < 24:
        return bytes((major | length,))
    if length < 1 << 8:
        return _pack_1(major | 0x18, length)
    return _pack_2(major | 0x19, length) if length < 1 << 16 else _pack_4(major | 0x1A, length)


def are_short(encoded: Sequence[bytes]) -> bool:
    """Whether each of these, at least one and none empty, is as long as its head says: one int or one short string."""
    if not _SHORT_BYTES[encoded[0][0]]:
        return False  # most columns of other items are recognized by their first one
    lengths = map(_SHORT_BYTES.__getitem__, map(itemgetter(0), encoded))
    return list(lengths) == list(map(len, encoded))


def joined(items: Sequence[bytes]) -> bytes:
    """The array of these encoded items; to decode it takes a third of the time of a call for each item."""
    return array_head(len(items)) + b"".join(items)


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
