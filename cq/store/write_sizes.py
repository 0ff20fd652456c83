"""What writes count towards the size of a transaction, as FoundationDB counts them.

A mutation counts with its key and value, and again with both ends of its write conflict range. So a key counts three
times when it is set, and four times when it is cleared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

TRANSACTION_BYTES: Final = 1_000_000
"""The most that a transaction of cq itself writes, unless one single item needs more."""
PREDICTED_BYTES: Final = 700_000
"""The most that is planned for such a transaction: predictions are not exact, and leave out what does not grow."""
SET_COPIES: Final = 3
CLEAR_COPIES: Final = 4
WRITE_BYTES: Final = 75
"""What a set or a clear costs in addition to its key and value, about."""
_RANGE_BYTES: Final = 26


def set_bytes(key: bytes, value: int) -> int:
    """The bytes of setting a key to a value of this length, about; a versionstamped key costs less."""
    return SET_COPIES * len(key) + value + WRITE_BYTES


def clear_bytes(key: bytes) -> int:
    """The bytes of clearing a key, about; setting it without a value costs less."""
    return CLEAR_COPIES * len(key) + WRITE_BYTES


def conflict_bytes(key: bytes) -> int:
    """The bytes of a read conflict range of a key, about."""
    return 2 * len(key) + _RANGE_BYTES


def fitting(costs: Iterable[int], most: int = PREDICTED_BYTES) -> int:
    """How many of the first items with these costs one transaction takes: at least one, however much that costs.

    >>> fitting([400, 400, 400], 1_000), fitting([5_000, 1], 1_000)
    (2, 1)
    """
    return max(1, bisect_right(list(accumulate(costs)), most))
