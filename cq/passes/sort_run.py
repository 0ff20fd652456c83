"""Sorts and combines the updates of many rows into the content of a run.

The sort works on columns, and in the memory order of the updates as long as possible: with several hundred thousand of
them, random access is bound by memory latency.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, compress, count, islice
from operator import eq
from typing import Any

from cq.combiners import Combiner
from cq.encoding import codec
from cq.encoding.codec import MAX_UPDATE_BYTES, ValueType
from cq.encoding.hashing import key_hash
from cq.keys import place
from cq.passes.columns import fold
from cq.passes.repacking import Pairs, encode_pairs


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
