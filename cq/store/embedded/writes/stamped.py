"""Versionstamped writes, kept in a list until another operation of the transaction must see them.

Most transactions only add rows under versionstamped keys and never read them, so such a write is only appended to a
list. A later read or plain write that may depend on the list first moves its entries into the other writes
(`Writes.place_stamped`). Entries still in the list at the commit came after all other writes, so they are applied last,
in order.
"""

from __future__ import annotations

from typing import NamedTuple

from cq.store.embedded.binding.atomic import stamp_at
from cq.store.embedded.binding.keys import STAMP_BYTES, Range, after


class StampedKey(NamedTuple):
    """A write whose key gets its versionstamp at the commit."""

    param: bytes
    """The key; its last four bytes are the offset of the stamp."""
    start: int
    """The offset of the stamp."""
    value: bytes
    min_version: int
    """The version in the stamp will be later than this."""
    end: bytes
    """The end of the key space that the transaction could read at the time of the write."""

    def possible_range(self) -> Range:
        """The range of all keys that the key may become."""
        first = stamp_at(self.param, self.start, self._min_stamp())
        # With the greatest stamp: the real one is unknown until the commit.
        last = after(stamp_at(self.param, self.start, b"\xff" * STAMP_BYTES))
        return first, min(last, self.end)

    def placeholder(self) -> bytes:
        """The key to store it under before the commit; unique, since it still contains the offset."""
        return self.param[: self.start] + self._min_stamp() + self.param[self.start + STAMP_BYTES :]

    def _min_stamp(self) -> bytes:
        return self.min_version.to_bytes(8, "big") + b"\0\0"


class StampedValue(NamedTuple):
    """A write whose value gets its versionstamp at the commit."""

    key: bytes
    param: bytes
    start: int
    conflict: bool
    """Whether it conflicts with reads of others."""


Stamped = StampedKey | StampedValue
