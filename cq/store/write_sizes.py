"""The sizes of writes, as FoundationDB counts them for the size limit of a transaction.

A mutation counts its key and value, and both ends of its write conflict range. So a key counts three times if it is
set, and four times if it is cleared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

TRANSACTION_BYTES: Final = 1_000_000
"""The maximum that a transaction of cq itself writes, unless a single item needs more."""
PREDICTED_BYTES: Final = 700_000
"""The maximum planned for such a transaction: predictions are not exact, and omit parts of constant size."""
SET_COPIES: Final = 3
CLEAR_COPIES: Final = 4
WRITE_BYTES: Final = 75
"""The approximate size of a set or a clear in addition to its key and value."""
_RANGE_BYTES: Final = 26


def set_bytes(key: bytes, value: int) -> int:
    """The approximate bytes of setting a key to a value of length `value`; a versionstamped key costs less."""
    return SET_COPIES * len(key) + value + WRITE_BYTES


def clear_bytes(key: bytes) -> int:
    """The approximate bytes of clearing a key; setting it to an empty value costs less."""
    return CLEAR_COPIES * len(key) + WRITE_BYTES


def conflict_bytes(key: bytes) -> int:
    """The approximate bytes of a read conflict range of a key."""
    return 2 * len(key) + _RANGE_BYTES


def fitting(costs: Iterable[int], most: int = PREDICTED_BYTES) -> int:
    """The number of leading items with these costs that fit into one transaction: at least one, at any cost.

    >>> fitting([400, 400, 400], 1_000), fitting([5_000, 1], 1_000)
    (2, 1)
    """
    return max(1, bisect_right(list(accumulate(costs)), most))
