"""Turns: keys are reported in hash order, beginning behind the one reported last, so that none starves.

Values lie in the store in that order, too: keys whose turns follow each other share its pages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cq.keys import place, places

HashRank = tuple[bool, bytes]


def rank_from_cursor(where: bytes, cursor: bytes) -> HashRank:
    """What sorts a place among others as its turn comes."""
    return where <= cursor, where


def count_up_to(order: Sequence[bytes], last: HashRank, cursor: bytes) -> int:
    """How many of these keys, which are in their turn, have it up to this one."""
    return bisect_right(order, last, key=lambda encoded: rank_from_cursor(place(encoded), cursor))


def order_from_cursor(where: Sequence[bytes], cursor: bytes) -> list[int]:
    """The positions of places in their turn, beginning behind a place; those that are the same stay in their order."""
    order = sorted(range(len(where)), key=where.__getitem__)
    behind = bisect_right(order, cursor, key=where.__getitem__)
    return order[behind:] + order[:behind]


def sort_from_cursor(encoded_keys: Sequence[bytes], cursor: bytes) -> list[bytes]:
    """Keys in their turn, beginning behind a place."""
    return [encoded_keys[position] for position in order_from_cursor(places(encoded_keys), cursor)]


def is_sorted_from_cursor(encoded_keys: Sequence[bytes], cursor: bytes) -> bool:
    """Whether keys are in their turn already."""
    turns = [rank_from_cursor(where, cursor) for where in places(encoded_keys)]
    return turns == sorted(turns)
