"""Folding into rows: updates of keys that are not reported yet, combined, in the place of the rows that they came from.

What is staged costs a write for each key, and a read and a clear when it is reported. Where few keys have many
updates, or nobody is told of changes, it is far cheaper to write what is left as rows again. Such a row is one
like any other, so nobody else needs to know of it. It takes the key of one of the first rows: all that it holds was
committed before what is left behind it, and as long as it waits, the age of the oldest update is told.

Unless all is to be folded first, the rows hold the keys in their turn. The pass that takes the first of them so finds
the values of its keys side by side: where the values of a queue take many pages, each page is read and written by one
pass and not by all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add
from typing import Final

from cq import codec
from cq.packing import ROW_BYTES
from cq.rows import Row, Updates
from cq.simplecbor import array_head, encode_strings
from cq.turns import in_turn

_LEAST_GAIN: Final = 2
UPDATE_BYTES: Final = 12
"""What an update takes in a row beside its key, about, if it is a number."""
_NO_OPERATION: Final = codec.encode(None)


def makes_less(updates: Updates) -> bool:
    """Whether there are so many updates for each key that folding leaves room for more of them."""
    return _LEAST_GAIN * len(updates) <= sum(map(len, updates.values()))


def repack(folded: Mapping[bytes, bytes], rows: Sequence[Row], cursor: bytes | None) -> dict[bytes, bytes]:
    """{encoded key: update, encoded} as {row's key: value} in the place of rows; empty when they have no room there.

    `cursor` is that of the bucket, from which the keys have their turns; None where those to come are of no use yet.
    """
    order = list(folded) if cursor is None else in_turn(list(folded), cursor)
    pairs = list(map(add, encode_strings(order), map(folded.__getitem__, order)))
    found = []
    first = size = 0
    for number, pair in enumerate(pairs):
        if size and size + len(pair) > ROW_BYTES:
            found.append(pairs[first:number])
            first, size = number, 0
        size += len(pair)
    if size:
        found.append(pairs[first:])
    if len(found) > len(rows):
        return {}
    return {
        row.key: array_head(1 + 2 * len(some)) + _NO_OPERATION + b"".join(some)
        for row, some in zip(rows, found, strict=False)
    }
