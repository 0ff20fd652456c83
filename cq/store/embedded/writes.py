"""The writes of one transaction, as its own reads see them and its commit applies them; and its read conflicts.

The rules are those of FoundationDB's read-your-writes client:

- the latest write of a key wins; atomic operations on a stored value that is not known yet are kept in a list;
- a key range can be cleared, be unreadable (a versionstamped key may be written into it), or both: see `segments`;
- a versionstamped value makes its key unreadable; a versionstamped key makes the range of its possible keys unreadable.

Most writes set plain values and cost one entry in a dict. Sorted keys are computed when a range read or a clear needs
them. Versionstamped writes are only appended to a list: most transactions only add rows under versionstamped keys and
never read them. A later read or plain write that may depend on the list first moves its entries into the other writes
(`Writes.place_stamped`). Entries still in the list at the commit came after all other writes, so they are applied last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from cq.store.embedded.atomic import (
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    Operation,
    apply,
    merge,
    stamp_at,
)
from cq.store.embedded.keys import STAMP_BYTES, SYSTEM_END, Range, Row, after

CLEARED = 1
UNREADABLE = 2


class Segments:
    """Flags by key range. Segment `i` reaches from `starts[i]` to the start of the next segment.

    `used` has all flags ever set, for fast checks.
    """

    __slots__ = ("flags", "starts", "used")

    def __init__(self) -> None:
        self.starts = [b""]
        self.flags = [0]
        self.used = 0

    def at(self, key: bytes) -> int:
        """The flags of one key."""
        return self.flags[bisect_right(self.starts, key) - 1]

    def change(self, begin: bytes, end: bytes, add: int, remove: int = 0) -> None:
        """Add and remove flags on [begin, end)."""
        self.used |= add
        first, last = self._split(begin), self._split(end)
        self.flags[first:last] = [(flags | add) & ~remove for flags in self.flags[first:last]]
        self._join(first, last)

    def runs(self, begin: bytes, end: bytes, flag: int) -> list[tuple[bytes, bytes]]:
        """The maximal parts of [begin, end) that have the flag."""
        found: list[tuple[bytes, bytes]] = []
        i = bisect_right(self.starts, begin) - 1
        while begin < end:
            stop = min(self.starts[i + 1], end) if i + 1 < len(self.starts) else end
            if self.flags[i] & flag:
                first = found.pop()[0] if found and found[-1][1] == begin else begin
                found.append((first, stop))
            begin, i = stop, i + 1
        return found

    def _split(self, key: bytes) -> int:
        """Split at `key` if no segment begins there; return the index of the segment that begins at `key`."""
        i = bisect_left(self.starts, key)
        if i == len(self.starts) or self.starts[i] != key:
            self.starts.insert(i, key)
            self.flags.insert(i, self.flags[i - 1])
        return i

    def _join(self, first: int, last: int) -> None:
        """Join adjacent segments with equal flags around a change: many adjacent clears must not grow the list."""
        for i in range(min(last, len(self.flags) - 1), max(first, 1) - 1, -1):
            if self.flags[i] == self.flags[i - 1]:
                del self.starts[i], self.flags[i]


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


_FEW = 16


SeenRow = tuple[bytes, bytes | None]
"""A key and its value; None: see `Writes.overlay`."""


class Writes:
    """A transaction's own writes."""

    __slots__ = (
        "_cleared_by_operation",
        "_counts",
        "_early",
        "_sorted",
        "pending",
        "segments",
        "stamped",
        "values",
        "write_keys",
        "write_ranges",
    )

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}  # plain writes; None: cleared
        self.pending: dict[bytes, Pending] = {}  # all other writes of single keys
        self.segments: Segments | None = None
        self.stamped: list[Stamped] = []  # later than all other writes, and not yet merged into them
        self.write_keys: set[bytes] = set()  # write conflicts, also of writes that a later one has replaced
        self.write_ranges: list[Range] = []
        self._early: list[Mutation] = []  # applied before all others
        self._cleared_by_operation: set[bytes] = set()  # keys of `values` that an operation has cleared
        self._sorted: list[bytes] | None = None
        self._counts = (0, 0)

    def __bool__(self) -> bool:
        """Whether reads must take these writes into account."""
        return bool(self.values or self.pending or self.segments or self.stamped)

    @property
    def empty(self) -> bool:
        """Whether the transaction is read-only: it has no writes and no write conflict ranges."""
        return not (self or self.write_keys or self.write_ranges)

    # Writing

    def fast_put(self, key: bytes, value: bytes | None) -> bool:
        """Set or clear a key, with a write conflict, if this needs only a dict entry; return whether it did."""
        if self.stamped or key in self.pending or key in self._cleared_by_operation:
            return False
        segments = self.segments
        if segments and segments.used & UNREADABLE and segments.at(key) & UNREADABLE:
            return False
        self.values[key] = value
        self.write_keys.add(key)
        return True

    def mutate(self, key: bytes, operation: int, operand: bytes, conflict: bool) -> None:
        """Set a key or apply an atomic operation to it."""
        if self.stamped:
            self.place_stamped()
        if conflict:
            self.write_keys.add(key)
        pending = self.pending.get(key)
        if pending is not None:
            self._add_operation(key, pending, operation, operand)
        elif key in self.values:
            self._overwrite(key, operation, operand)
        else:
            self._first_write(key, operation, operand)

    def _first_write(self, key: bytes, operation: int, operand: bytes | None) -> None:
        flags = self._flags(key)
        if flags & CLEARED and operation not in INDEPENDENT:
            operation, operand = SET, apply(operation, None, operand)
        if operation == SET and not flags & UNREADABLE:
            self._put(key, operand)
        else:
            unreadable = bool(flags & UNREADABLE) or operation in STAMPED
            self.pending[key] = Pending([(operation, operand)], unreadable)

    def _overwrite(self, key: bytes, operation: int, operand: bytes) -> None:
        if operation in STAMPED:
            self._remove(key)
            self.pending[key] = Pending([(operation, operand)], True)
        else:
            self._put(key, apply(operation, self.values[key], operand))

    def _put(self, key: bytes, value: bytes | None) -> None:
        self.values[key] = value
        if value is None:
            self._cleared_by_operation.add(key)

    def _add_operation(self, key: bytes, pending: Pending, operation: int, operand: bytes) -> None:
        if pending.unreadable:
            pending.operations.append((operation, operand))
        elif operation == SET_VERSIONSTAMPED_VALUE:
            pending.operations, pending.unreadable = [(operation, operand)], True
        elif operation != SET:
            merge(pending.operations, operation, operand)
        else:
            self._remove(key)
            self.values[key] = operand

    def clear(self, key: bytes, conflict: bool) -> None:
        """Clear one key."""
        if self.stamped:
            self.place_stamped()
        if key in self.pending:
            self._remove(key)
        if conflict:
            self.write_keys.add(key)
        self._cleared_by_operation.discard(key)
        self.values[key] = None

    def clear_range(self, begin: bytes, end: bytes, conflict: bool) -> None:
        """Clear [begin, end). Earlier write conflicts in the range remain, also without `conflict`."""
        if self.stamped:
            self.place_stamped()
        self._drop(begin, end)
        self._ranges().change(begin, end, CLEARED, UNREADABLE)
        if conflict:
            self.write_ranges.append((begin, end))

    def add_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Make others' reads of [begin, end) conflict with this transaction."""
        if end == after(begin):
            self.write_keys.add(begin)
        else:
            self.write_ranges.append((begin, end))

    def place_stamped(self) -> None:
        """Merge the versionstamped writes into the others, before a read or a write that must see them."""
        stamped, self.stamped = self.stamped, []
        for write in stamped:
            if isinstance(write, StampedKey):
                span = write.possible_range()
                self._freeze(*span)
                self._ranges().change(*span, UNREADABLE, CLEARED)
                self.mutate(write.placeholder(), SET_VERSIONSTAMPED_KEY, write.value, False)
            else:
                self.mutate(write.key, SET_VERSIONSTAMPED_VALUE, write.param, False)

    def _freeze(self, begin: bytes, end: bytes) -> None:
        """Move the writes in [begin, end) to `early`, so that later writes there are applied after them."""
        early = self._early
        early += [(CLEAR_RANGE, b, e) for b, e in self._ranges().runs(begin, end, CLEARED)]
        for key in self.keys(begin, end):
            operations = self.pending[key].operations if key in self.pending else [(SET, self.values[key])]
            early += [(operation, key, operand) for operation, operand in operations]
        self._drop(begin, end)

    # Reading

    def unreadable(self, key: bytes) -> bool:
        """Whether a read of the key must fail."""
        pending = self.pending.get(key)
        if pending is not None:
            return pending.unreadable
        return key not in self.values and bool(self._flags(key) & UNREADABLE)

    def cleared(self, key: bytes) -> bool:
        """Whether a key without writes of its own lies in a cleared range."""
        return bool(self._flags(key) & CLEARED)

    def keys(self, begin: bytes, end: bytes) -> list[bytes]:
        """The keys in [begin, end) with writes of their own, sorted."""
        # For few keys, a scan is cheaper than keeping the sorted list up to date.
        if len(self.values) + len(self.pending) <= _FEW:
            return sorted(key for key in chain(self.values, self.pending) if begin <= key < end)
        index = self._index()
        return index[bisect_left(index, begin) : bisect_left(index, end)]

    def overlay(self, rows: list[Row], begin: bytes, end: bytes, reverse: bool) -> Sequence[SeenRow]:
        """The rows of [begin, end) as this transaction sees them; none of the stored `rows` is in a cleared range.

        A value of None: in FoundationDB, a key that an atomic operation of the same transaction has cleared still
        counts for the offset of a selector, but a selector never returns it.
        """
        keys = self.keys(begin, end)
        if not keys:
            return rows
        merged: dict[bytes, bytes | None] = dict(rows)
        for key in keys:
            pending = self.pending.get(key)
            value = pending.value(merged.get(key)) if pending else self.values[key]
            if value is None and pending is None and key not in self._cleared_by_operation:
                merged.pop(key, None)
            else:
                merged[key] = value
        return sorted(merged.items(), reverse=reverse)

    def unreadable_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """The unreadable parts of [begin, end), sorted, without the keys written later, whose values are known."""
        runs = self.segments.runs(begin, end, UNREADABLE) if self.segments else []
        parts = [part for run in runs for part in _without(*run, self.keys(*run))]
        if self.pending:
            keys = (key for key in self.keys(begin, end) if key in self.pending)
            parts += [(key, after(key)) for key in keys if self.pending[key].unreadable]
        return sorted(parts)

    def live(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes, bool]]:
        """The parts of [begin, end): True where stored rows are visible, False where they are cleared."""
        if not self.segments:
            return [(begin, end, True)]
        parts = []
        for start, stop in self.segments.runs(begin, end, CLEARED):
            if begin < start:
                parts.append((begin, start, True))
            parts.append((start, stop, False))
            begin = stop
        if begin < end:
            parts.append((begin, end, True))
        return parts

    def stored_parts(self, begin: bytes, end: bytes) -> list[Range]:
        """The parts of [begin, end) whose content depends on stored rows: a read conflicts only there."""
        parts: list[Range] = []
        for start, stop, live in self.live(begin, end):
            if live:
                parts += _without(
                    start, stop, [key for key in self.keys(start, stop) if not self.depends(key)]
                )
        return parts

    def depends(self, key: bytes) -> bool:
        """Whether the value of a key in this transaction depends on the stored value."""
        pending = self.pending.get(key)
        if pending is not None:
            return pending.dependent
        return key not in self.values and not self.cleared(key)

    # Committing

    def before_values(self) -> Iterator[Mutation]:
        """The mutations before the plain values."""
        yield from self._early
        if self.segments:
            for begin, end in self.segments.runs(b"", SYSTEM_END, CLEARED):
                yield CLEAR_RANGE, begin, end

    def after_values(self) -> Iterator[Mutation]:
        """The mutations after the plain values, and before `stamped`."""
        for key, pending in self.pending.items():
            for operation, operand in pending.operations:
                yield operation, key, operand

    # Inside

    def _ranges(self) -> Segments:
        if self.segments is None:
            self.segments = Segments()
        return self.segments

    def _flags(self, key: bytes) -> int:
        return self.segments.at(key) if self.segments else 0

    def _remove(self, key: bytes) -> None:
        """Remove the writes of a key, but keep their write conflict."""
        self.values.pop(key, None)
        self.pending.pop(key, None)
        self._sorted = None

    def _drop(self, begin: bytes, end: bytes) -> None:
        for key in self.keys(begin, end):
            self._remove(key)

    def _index(self) -> list[bytes]:
        """All written keys, sorted. If no key was removed since the last call, only the new keys are added."""
        counts = len(self.values), len(self.pending)
        if self._sorted is None:
            self._sorted = sorted(chain(self.values, self.pending))
        elif counts != self._counts:
            # Dicts keep the order of insertion, so the new keys are the last ones.
            self._sorted += islice(self.values, self._counts[0], None)
            self._sorted += islice(self.pending, self._counts[1], None)
            self._sorted.sort()
        self._counts = counts
        return self._sorted


def _without(begin: bytes, end: bytes, keys: list[bytes]) -> list[Range]:
    """The parts of [begin, end) between the keys."""
    starts = [begin, *map(after, keys)]
    stops = [*keys, end]
    return [(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]


RANGE_BYTES = 24
"""The size of a conflict range without its keys, as FoundationDB counts it."""


class ReadSet:
    """The read conflict keys and ranges of one transaction."""

    __slots__ = ("_sorted", "keys", "ranges", "size")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.ranges: list[Range] = []
        self.size = 0
        self._sorted: list[bytes] = []

    def sorted_keys(self) -> list[bytes]:
        """The keys, sorted. Cached: the caller must not add keys after the first call."""
        if len(self._sorted) != len(self.keys):
            self._sorted = sorted(self.keys)
        return self._sorted

    def __bool__(self) -> bool:
        return bool(self.keys or self.ranges)

    def add_key(self, key: bytes, writes: Writes | None) -> None:
        """Add a read of a key; `writes` are the own writes visible to the read."""
        if writes and not writes.depends(key):
            return
        self.size += 2 * len(key) + 1 + RANGE_BYTES
        self.keys.add(key)

    def add_range(self, begin: bytes, end: bytes, writes: Writes | None) -> None:
        """Add a read of [begin, end)."""
        if begin >= end:
            return
        if end == after(begin):
            self.add_key(begin, writes)
            return
        parts = writes.stored_parts(begin, end) if writes else [(begin, end)]
        self.size += (len(begin) + len(end) + RANGE_BYTES) * len(parts)
        self.ranges += parts

    def add_selector(self, key: bytes, offset: int, found: bytes, writes: Writes | None) -> None:
        """Add the resolution of a selector to the key `found`."""
        if offset <= 0:
            self.add_range(found, key, writes)
        else:
            self.add_range(key, after(found), writes)
