"""Turns: keys are reported in hash order, beginning behind the one reported last, so that none starves.

Values lie in the store in that order, too: keys whose turns follow each other share its pages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cq.keys import place, places

Turn = tuple[bool, bytes]


def turn_of(where: bytes, cursor: bytes) -> Turn:
    """What sorts a place among others as its turn comes."""
    return where <= cursor, where


def until(order: Sequence[bytes], last: Turn, cursor: bytes) -> int:
    """How many of these keys, which are in their turn, have it up to this one."""
    return bisect_right(order, last, key=lambda encoded: turn_of(place(encoded), cursor))


def in_turn(encoded_keys: Sequence[bytes], cursor: bytes) -> list[bytes]:
    """Different keys in their turn, beginning behind a place."""
    at = dict(zip(places(encoded_keys), encoded_keys, strict=True))
    order = sorted(at)
    behind = bisect_right(order, cursor)
    return [at[where] for where in order[behind:] + order[:behind]]


def are_in_turn(encoded_keys: Sequence[bytes], cursor: bytes) -> bool:
    """Whether keys are in their turn already."""
    turns = [turn_of(where, cursor) for where in places(encoded_keys)]
    return turns == sorted(turns)
