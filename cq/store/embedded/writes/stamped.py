"""Versionstamped writes, as a transaction keeps them until somebody looks at them.

Whoever only adds rows under versionstamped keys, the commonest transaction of all, never asks what became of them.
So such a write is noted and no more. A read or a plain write that comes after it, and may have to do with it, first
has all that is noted find its place among the other writes (`Writes.settle`); what is still noted at the commit came
after everything else, and is applied last, in its order.
"""

from __future__ import annotations

from typing import NamedTuple

from cq.store.embedded.binding.atomic import stamp_at
from cq.store.embedded.binding.keys import STAMP_BYTES, Range, after


class StampedKey(NamedTuple):
    """A key that gets its versionstamp at the commit."""

    param: bytes
    """The key, and in its last four bytes where the stamp goes."""
    start: int
    """Where that is."""
    value: bytes
    min_version: int
    """The stamp will be later than this version."""
    end: bytes
    """The end of the key space that the transaction could read when it wrote this."""

    def possible_range(self) -> Range:
        """All that the key may become."""
        first = stamp_at(self.param, self.start, self._min_stamp())
        last = after(stamp_at(self.param, self.start, b"\xff" * STAMP_BYTES))
        return first, min(last, self.end)

    def placeholder(self) -> bytes:
        """Where it lies until it has its stamp, apart from all others: the offset is still in it."""
        return self.param[: self.start] + self._min_stamp() + self.param[self.start + STAMP_BYTES :]

    def _min_stamp(self) -> bytes:
        return self.min_version.to_bytes(8, "big") + b"\0\0"


class StampedValue(NamedTuple):
    """A value that gets its versionstamp at the commit."""

    key: bytes
    param: bytes
    start: int
    conflict: bool
    """Whether it conflicts with reads of others."""


Stamped = StampedKey | StampedValue
