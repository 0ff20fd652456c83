"""The order of reports: by hash, from a bucket's cursor on, so that no key starves.

The cursor is the position of the key reported last; the order continues after it and wraps around. Values are stored in
hash order, too, so keys that follow each other in this order share pages of the store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cq.keys import place, places

HashRank = tuple[bool, bytes]


def rank_from_cursor(where: bytes, cursor: bytes) -> HashRank:
    """Return the sort key of a position in hash order, counted from a cursor."""
    return where <= cursor, where  # positions up to the cursor come last


def count_up_to(order: Sequence[bytes], last: HashRank, cursor: bytes) -> int:
    """Return how many of these keys, sorted from the cursor, have at most the rank `last`."""
    return bisect_right(order, last, key=lambda encoded: rank_from_cursor(place(encoded), cursor))


def order_from_cursor(where: Sequence[bytes], cursor: bytes) -> list[int]:
    """Return the indices that sort positions in hash order from a cursor; the sort is stable."""
    order = sorted(range(len(where)), key=where.__getitem__)
    first = bisect_right(order, cursor, key=where.__getitem__)
    return order[first:] + order[:first]


def sort_from_cursor(encoded_keys: Sequence[bytes], cursor: bytes) -> list[bytes]:
    """Return keys in hash order from a cursor."""
    return [encoded_keys[index] for index in order_from_cursor(places(encoded_keys), cursor)]
