"""Parts of the stored configuration of a queue: its shape, its purges, its audit."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

MAX_BUCKETS: Final = 4096
MAX_GENERATIONS: Final = (1 << 32) - 2
"""The largest number of a generation: it and its successor fit into the four bytes of a key."""


def require(holds: bool) -> None:
    """Raise `ValueError` unless a stored part is one that cq writes: it must fail here, not later in a pass."""
    if not holds:
        raise ValueError("a part of it has a wrong type or size")


def generation(stored: Any) -> int:
    """A stored number of generations or purges."""
    require(type(stored) is int and 0 <= stored <= MAX_GENERATIONS)
    number: int = stored
    return number


class Shape(NamedTuple):
    """The number of buckets of a queue, and its generation."""

    generation: int
    buckets: int

    @classmethod
    def from_stored(cls, stored: Any) -> Shape:
        """The stored shape."""
        number, buckets = stored
        require(type(buckets) is int and 0 < buckets <= MAX_BUCKETS)
        return cls(generation(number), buckets)


class Purges(NamedTuple):
    """The purges of a queue.

    Attributes:
        latest: the number of the latest purge, from 1; 0: there was none.
        generation: the generation of the shape at the latest purge.
    """

    latest: int = 0
    generation: int = 0

    @classmethod
    def from_stored(cls, stored: Any) -> Purges:
        """The stored purges."""
        return cls(*map(generation, stored))


class Audit(NamedTuple):
    """An audit of a queue, see `cq.queue.ledger`.

    Attributes:
        generation: the number of its start, from 1.
        buckets: the number of buckets of the audit.
        whole: whether its sums include all updates of the queue.
    """

    generation: int
    buckets: int
    whole: bool

    @classmethod
    def from_stored(cls, stored: Any) -> Audit | None:
        """The stored audit; None: there is none."""
        if stored is None:
            return None
        number, buckets, whole = stored
        require(type(whole) is bool)
        return cls(*Shape.from_stored((number, buckets)), whole)
