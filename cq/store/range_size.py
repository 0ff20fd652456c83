"""The size of a range of rows: counted if it is small, estimated if it is large.

A cluster estimates sizes from a sample of its keys. For a range of some kilobytes, the estimate is 0 or several times
the size. So small ranges are counted, on both kinds of store.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cq.store.api import WANT_ALL, TransactionRead

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
