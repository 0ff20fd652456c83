"""Writes folded updates as rows again, under the keys of the rows that they came from.

Staging costs a write for each key, and a read and a clear when the key is reported. If few keys have many updates, it
is far cheaper to write the folded updates as rows, so that passes can fold a deep backlog to its end before they report
any of it. They are rows like any others: no other code needs to know of them. They take the keys of the first rows, so
that they still precede all remaining rows, and the age of the oldest queued update stays correct.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

from cq.encoding import codec
from cq.encoding.cbor import array_head, encode_strings
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import Row, Updates

_LEAST_GAIN: Final = 2
UPDATE_BYTES: Final = 12
"""Bytes of an update in a row in addition to its key, about, if it is a number."""
_NO_OPERATION: Final = codec.encode(None)
_FIRST_WINDOW: Final = 256
_MORE: Final = 8  # try 1/8 more pairs than the previous row took, before doubling


def shrinks_backlog(updates: Updates) -> bool:
    """Whether keys have enough updates each that folding makes room for more of the backlog."""
    return _LEAST_GAIN * len(updates) <= sum(map(len, updates.values()))


def repack(folded: Mapping[bytes, bytes], rows: Sequence[Row]) -> dict[bytes, bytes]:
    """Folded updates, {encoded key: encoded update}, as {row's key: value}; empty if they do not fit."""
    pairs = encode_pairs(list(folded), list(folded.values()))
    return pack_into_rows(Pairs(pairs, range(len(pairs))), rows)


class Pairs(NamedTuple):
    """Keys and updates as `encode_pairs` returns them, and the indices of those to write, in order."""

    encoded: Sequence[bytes]
    order: Sequence[int]


def encode_pairs(encoded_keys: Sequence[bytes], updates: Sequence[bytes]) -> list[bytes]:
    """Each key with its update, encoded as in a row."""
    return list(map(add, encode_strings(encoded_keys), updates))


def pack_into_rows(pairs: Pairs, rows: Sequence[Row]) -> dict[bytes, bytes]:
    """The pairs, in order, as {row's key: value} under the keys of `rows`; empty if they do not fit."""
    encoded, order = pairs
    found: dict[bytes, bytes] = {}
    first, window = 0, _FIRST_WINDOW
    for row in rows:
        # Join only about as many pairs as a row holds: all remaining ones for each row would take quadratic time.
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
