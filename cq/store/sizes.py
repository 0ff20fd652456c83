"""Sizes of ranges, and of writes as FoundationDB counts them for the size limit of a transaction.

A cluster estimates the size of a range from a sample of its keys. For a range of some kilobytes, the estimate is 0 or
several times the size. So small ranges are counted, on both kinds of store.

A mutation counts its key and value, and both ends of its write conflict range. So a key counts three times if it is
set, and four times if it is cleared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from cq.store.api import WANT_ALL, TransactionRead

TRANSACTION_BYTES: Final = 1_000_000
"""The maximum that a transaction of cq itself writes, unless a single item needs more."""
PREDICTED_BYTES: Final = 700_000
"""The maximum planned for such a transaction: predictions are not exact, and omit parts of constant size."""
SET_COPIES: Final = 3
CLEAR_COPIES: Final = 4
WRITE_BYTES: Final = 75
"""The approximate size of a set or a clear in addition to its key and value."""
_RANGE_BYTES: Final = 26
COUNTED_BYTES: Final = 1_000_000
"""Ranges up to this size are counted, by reading them."""


class RangeSize(NamedTuple):
    """Rows and bytes in a range; `exact` says whether they were counted."""

    rows: int
    bytes: int
    exact: bool


def count_rows(snapshot: TransactionRead, begin: bytes, end: bytes) -> RangeSize:
    """Rows and bytes in a range, counted up to 1 MB.

    A larger range is estimated from the counted rows and the estimate of the store, with an error of a few times.
    """
    rows = size = 0
    for row in snapshot.get_range(begin, end, streaming_mode=WANT_ALL):
        rows += 1
        size += len(row.key) + len(row.value)
        if size > COUNTED_BYTES:
            about = max(size, snapshot.get_estimated_range_size_bytes(begin, end).wait())
            return RangeSize(rows * about // size, about, exact=False)
    return RangeSize(rows, size, exact=True)


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
    """The number of leading items with these costs that fit into a transaction of `most` bytes: at least one.

    >>> fitting([400, 400, 400], 1_000), fitting([5_000, 1], 1_000)
    (2, 1)
    """
    return max(1, bisect_right(list(accumulate(costs)), most))
