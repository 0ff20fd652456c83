"""The first rows of long tables: a page has a limited size, whatever the store has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

MOST_ROWS: Final = 200
"""The rows of a table; a page of queues has half of them."""


class First(NamedTuple, Generic[T]):
    """The first rows of a table, and the number of further ones."""

    rows: Sequence[T]
    more: int


def first_of(rows: Iterable[T], most: int = MOST_ROWS) -> First[T]:
    """The first rows.

    >>> first_of("abc", 2)
    First(rows=['a', 'b'], more=1)
    """
    found = list(rows)
    return First(found[:most], max(0, len(found) - most))
