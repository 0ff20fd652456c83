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

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

from cq.encoding import codec
from cq.encoding.cbor import array_head, encode_strings
from cq.keys import places
from cq.passes.hash_order import order_from_cursor
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import Row, Updates

_LEAST_GAIN: Final = 2
UPDATE_BYTES: Final = 12
"""What an update takes in a row beside its key, about, if it is a number."""
_NO_OPERATION: Final = codec.encode(None)
_FIRST_WINDOW: Final = 256
_MORE: Final = 8  # so much more than the row before has a row room for, at most; or it is looked for again


def shrinks_backlog(updates: Updates) -> bool:
    """Whether there are so many updates for each key that folding leaves room for more of them."""
    return _LEAST_GAIN * len(updates) <= sum(map(len, updates.values()))


def repack(folded: Mapping[bytes, bytes], rows: Sequence[Row], cursor: bytes | None) -> dict[bytes, bytes]:
    """{encoded key: update, encoded} as {row's key: value} in the place of rows; empty when they have no room there.

    `cursor` is that of the bucket, from which the keys have their turns; None where those to come are of no use yet.
    """
    keys = list(folded)
    order = range(len(keys)) if cursor is None else order_from_cursor(places(keys), cursor)
    return pack_into_rows(Pairs(encode_pairs(keys, list(folded.values())), order), rows)


class Pairs(NamedTuple):
    """Keys and updates as `encode_pairs` gives them, and the positions of those that count, in their order."""

    encoded: Sequence[bytes]
    order: Sequence[int]


def encode_pairs(encoded_keys: Sequence[bytes], updates: Sequence[bytes]) -> list[bytes]:
    """Each key and its update, encoded, as they lie in a row."""
    return list(map(add, encode_strings(encoded_keys), updates))


def pack_into_rows(pairs: Pairs, rows: Sequence[Row]) -> dict[bytes, bytes]:
    """The pairs, in their order, as {row's key: value} in the place of rows; empty when they have no room there."""
    encoded, order = pairs
    found: dict[bytes, bytes] = {}
    first, window = 0, _FIRST_WINDOW
    for row in rows:
        some = [encoded[position] for position in order[first : first + window]]
        while len(some) == window and sum(map(len, some)) <= ROW_BYTES:
            window *= 2
            some = [encoded[position] for position in order[first : first + window]]
        number = max(1, bisect_right(list(accumulate(map(len, some))), ROW_BYTES))
        found[row.key] = array_head(1 + 2 * number) + _NO_OPERATION + b"".join(some[:number])
        first += number
        if first >= len(order):
            return found
        window = number + number // _MORE + 1
    return {}
