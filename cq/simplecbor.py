"""Many simple items of CBOR as one array: one call of the decoder in place of one for each.

That is possible because an item says how long it is (RFC 8949), so that items one behind the other can be taken apart
in one way only; and it is safe where each of them has been seen to be just one, and nothing besides.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def array_head(length: int) -> bytes:
    """How an array of so many begins in CBOR."""
    return cbor2.dumps([None] * length)[:-length] if length else b"\x80"


def are_simple(many: Sequence[bytes]) -> bool:
    """Whether each is one int of up to 64 bits, or a string of up to 255 bytes, and nothing besides."""
    lengths = list(map(_LENGTHS.get, [data[:1] for data in many]))
    if None in lengths:
        lengths = [
            2 + data[1] if length is None and data[:1] in _LONGER and len(data) > 1 else length
            for data, length in zip(many, lengths, strict=True)
        ]
    return lengths == list(map(len, many))
