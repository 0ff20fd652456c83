"""Writes folded updates as rows again, under the keys of the rows that they came from, also sorted as a run.

Staging costs a write for each key, and a read and a clear when the key is reported. If few keys have many updates, it
is far cheaper to write the folded updates as rows, so that passes can fold a deep backlog to its end before they report
any of it. They are rows like any others: no other code needs to know of them. They take the keys of the first rows, so
that they still precede all remaining rows, and the age of the oldest queued update stays correct.

The sort of a run works on columns, and in the memory order of the updates as long as possible: with several hundred
thousand of them, random access is bound by memory latency.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, compress, count, islice
from operator import add, eq
from typing import Any, Final, NamedTuple

from cq.combiners import Combiner
from cq.encoding import codec
from cq.encoding.cbor import array_head, encode_strings
from cq.encoding.codec import MAX_UPDATE_BYTES, ValueType
from cq.encoding.hashing import key_hash
from cq.keys import place
from cq.passes.columns import fold
from cq.queue.packing import ROW_BYTES
from cq.queue.rows import Row, Updates

_LEAST_GAIN: Final = 2
UPDATE_BYTES: Final = 12
"""Bytes of an update in a row in addition to its key, about, if it is a number."""
_NO_OPERATION: Final = codec.encode(None)
_FIRST_WINDOW: Final = 256
_MORE: Final = 8  # try 1/8 more pairs than the previous row took, before doubling


def shrinks_backlog(updates: Updates) -> bool:
    """Return whether keys have enough updates each that folding makes room for more of the backlog."""
    return _LEAST_GAIN * len(updates) <= sum(map(len, updates.values()))


def repack(folded: Mapping[bytes, bytes], rows: Sequence[Row]) -> dict[bytes, bytes]:
    """Return folded updates, {encoded key: encoded update}, as {row's key: value}; empty if they do not fit."""
    pairs = encode_pairs(list(folded), list(folded.values()))
    return pack_into_rows(Pairs(pairs, range(len(pairs))), rows)


class Pairs(NamedTuple):
    """Keys and updates as `encode_pairs` returns them, and the indices of those to write, in order."""

    encoded: Sequence[bytes]
    order: Sequence[int]


def encode_pairs(encoded_keys: Sequence[bytes], updates: Sequence[bytes]) -> list[bytes]:
    """Return each key with its update, encoded as in a row."""
    return list(map(add, encode_strings(encoded_keys), updates))


def pack_into_rows(pairs: Pairs, rows: Sequence[Row]) -> dict[bytes, bytes]:
    """Return the pairs, in order, as {row's key: value} under the keys of `rows`; empty if they do not fit."""
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


def sorted_pairs(
    combiner: Combiner, kind: ValueType, contents: Sequence[list[Any]], cursor: bytes
) -> Pairs | None:
    """Return the keys and updates of rows in hash order from a cursor, the updates of each key combined.

    `contents` has the rows in commit order, as `rows.decode_content` returns them; the combiner is one of cq's own.
    Returns None if a combined value is not an update. Raises as `columns.fold` does.
    """
    keys = list(chain.from_iterable([content[1::2] for content in contents]))
    updates = list(chain.from_iterable([content[2::2] for content in contents]))
    order, repeated = _by_place(keys)
    data = codec.encode_values(updates, MAX_UPDATE_BYTES)
    if repeated:
        lists = [[updates[position] for position in positions] for positions in repeated]
        folded, are_updates = fold(combiner, kind, [None] * len(lists), lists)
        if not are_updates:
            return None
        for positions, each in zip(repeated, folded, strict=True):
            data[positions[-1]] = each
    first = bisect_right(order, cursor, key=lambda position: place(keys[position]))
    return Pairs(encode_pairs(keys, data), order[first:] + order[:first])


def _by_place(keys: Sequence[bytes]) -> tuple[list[int], list[list[int]]]:
    """Return the index of the last occurrence of each key, in hash order, and all indices of each repeated key.

    Hashes are sorted as floats, which Python compares fastest; then keys that share a hash are sorted.
    """
    hashes = list(map(float, map(key_hash, keys)))
    order = sorted(range(len(keys)), key=hashes.__getitem__)
    in_order = [hashes[position] for position in order]
    shared = compress(count(), map(eq, in_order, islice(in_order, 1, None)))
    found: list[int] = []
    repeated = []
    done = 0
    for first in shared:
        if first < done:
            continue
        found += order[done:first]
        done = bisect_right(in_order, in_order[first], first)
        alike: dict[bytes, list[int]] = {}
        for position in order[first:done]:
            alike.setdefault(keys[position], []).append(position)
        for _, positions in sorted(alike.items()):
            found.append(positions[-1])
            if len(positions) > 1:
                repeated.append(positions)
    return found + order[done:], repeated
