"""The writes of a transaction, in the form that its commit applies.

Versionstamped writes are kept in a list until another operation of the transaction must see them. Most transactions
only add rows under versionstamped keys and never read them. A later read or plain write that may depend on the list
first moves its entries into the other writes (`Writes.place_stamped`). Entries still in the list at the commit came
after all other writes, so they are applied last, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cq.store.embedded.binding.atomic import (
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    Operation,
    apply,
    stamp_at,
)
from cq.store.embedded.binding.keys import STAMP_BYTES, Range, after

CLEAR_RANGE = 1

Mutation = tuple[int, bytes, bytes | None]
"""A code, a key, and the operand; for `CLEAR_RANGE`, the operand is the end of the range."""

STAMPED = frozenset({SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE})
INDEPENDENT = STAMPED | {SET}


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


class Pending:
    """The writes of one key, if they are not a single plain value."""

    __slots__ = ("operations", "unreadable")

    def __init__(self, operations: list[Operation], unreadable: bool) -> None:
        self.operations = operations
        self.unreadable = unreadable

    @property
    def dependent(self) -> bool:
        """Whether the result depends on the stored value."""
        return self.operations[0][0] not in INDEPENDENT

    def value(self, stored: bytes | None) -> bytes | None:
        """The value of the key after the operations, applied to a stored value."""
        for operation, operand in self.operations:
            # Only reads with the option `bypass_unreadable` get here with a stamped operand; they see it unchanged.
            stored = operand if operation in STAMPED else apply(operation, stored, operand)
        return stored


class CommitChanges:
    """The write conflicts and mutations of a commit. The order is `early`, `clears`, `values`, `pending`, `stamped`."""

    __slots__ = ("clears", "early", "pending", "stamped", "values", "write_keys", "write_ranges")

    def __init__(self) -> None:
        self.early: list[Mutation] = []
        self.clears: list[Range] = []
        self.values: dict[bytes, bytes | None] = {}
        self.pending: dict[bytes, Pending] = {}
        self.stamped: list[Stamped] = []
        self.write_keys: set[bytes] = set()
        self.write_ranges: list[Range] = []

    @property
    def empty(self) -> bool:
        """Whether the transaction is read-only: it has no writes and no write conflict ranges."""
        return not (self.writes or self.write_keys or self.write_ranges)

    @property
    def writes(self) -> bool:
        """Whether there are writes."""
        return bool(self.values or self.pending or self.stamped or self.clears or self.early)

    def before_values(self) -> Iterator[Mutation]:
        """The mutations before the plain values."""
        yield from self.early
        for begin, end in self.clears:
            yield CLEAR_RANGE, begin, end

    def after_values(self) -> Iterator[Mutation]:
        """The mutations after the plain values, and before `stamped`."""
        for key, pending in self.pending.items():
            for operation, operand in pending.operations:
                yield operation, key, operand
