"""Bringing the updates of many rows in order: what a run is made of.

It is done by columns, and in the order in which the updates lie in memory as long as possible: of several hundred
thousand of them, whatever takes one here and one there waits for the memory most of the time.
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
    """The keys and updates of rows in turn, those of the same key combined.

    `contents` is as `rows.decode_content` gives it, in commit order; `cursor` is that of the bucket. None when what was
    combined is no update. Raises as `columns.fold` does; the combiner is one of cq's own.
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
    behind = bisect_right(order, cursor, key=lambda position: place(keys[position]))
    return Pairs(encode_pairs(keys, data), order[behind:] + order[:behind])


def _by_place(keys: Sequence[bytes]) -> tuple[list[int], list[list[int]]]:
    """The positions of keys by their place, of each key the last one; and all positions of those that have several.

    They are sorted by their hash, as Python compares nothing faster than floats, and then those that share one.
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
