"""The writes of a transaction, in the form that its commit applies."""

from __future__ import annotations

from collections.abc import Iterator

from cq.store.embedded.binding.atomic import (
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    Operation,
    apply,
)
from cq.store.embedded.binding.keys import Range
from cq.store.embedded.writes.stamped import Stamped

CLEAR_RANGE = 1

Mutation = tuple[int, bytes, bytes | None]
"""A code, a key, and the operand; for `CLEAR_RANGE`, the operand is the end of the range."""

STAMPED = frozenset({SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE})
INDEPENDENT = STAMPED | {SET}


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


class Changes:
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
