"""The writes of a transaction, with their checks, sizes and effects on own watches."""

from __future__ import annotations

from cq.store.embedded.binding import atomic
from cq.store.embedded.binding.error import (
    CLIENT_INVALID_OPERATION,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    VALUE_TOO_LARGE,
    FDBError,
)
from cq.store.embedded.binding.keys import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    METADATA_VERSION,
    STAMP_BYTES,
    USER_END,
    after,
    clip,
    max_key_bytes,
)
from cq.store.embedded.client.state import TransactionState
from cq.store.embedded.writes.changes import StampedKey, StampedValue
from cq.store.embedded.writes.read_set import RANGE_BYTES

MUTATION_BYTES = 44
"""The size of a mutation without its key and value, as FoundationDB counts it."""

_SET_BYTES = MUTATION_BYTES + RANGE_BYTES + 1
_CLEAR_BYTES = _SET_BYTES + 1
_STAMPED_BYTES = STAMP_BYTES + 4
_METADATA_PARAM = bytes(14)


class TransactionWrites(TransactionState):
    """The writes of a transaction. They raise errors, which the caller defers."""

    __slots__ = ()

    def fast_put(self, key: bytes, value: bytes | None) -> bool:
        """A fast path of `set` and `clear`, for nearly all writes; return False if the write needs the other path."""
        length = len(key) if value is None else len(value)
        if not (self._allows_fast_write(key, length) and self._writes.fast_put(key, value)):
            return False
        self._size += 3 * len(key) + length + (_SET_BYTES if value is not None else _CLEAR_BYTES)
        return True

    def fast_stamp_key(self, key: bytes, value: bytes) -> bool:
        """A fast path for a versionstamped key; return False if the write needs `mutate`."""
        start = int.from_bytes(key[-4:], "little")
        if start > len(key) - _STAMPED_BYTES or not self._allows_fast_write(key, len(value)):
            return False
        self._stamp_key(key, start, value)
        return True

    def fast_stamp_value(self, key: bytes, param: bytes) -> bool:
        """A fast path for a versionstamped value; return False if the write needs `mutate`."""
        start = int.from_bytes(param[-4:], "little")
        if start > len(param) - _STAMPED_BYTES or not self._allows_fast_write(key, len(param)):
            return False
        self._size += 3 * len(key) + len(param) + _SET_BYTES
        self._writes.stamped.append(StampedValue(key, param, start, True))
        return True

    def _allows_fast_write(self, key: bytes, length: int) -> bool:
        """Whether a write needs no error, option or watch to be handled; true for nearly all writes."""
        return not (
            key >= USER_END
            or len(key) > MAX_KEY_BYTES
            or length > MAX_VALUE_BYTES
            or self._committing
            or self._watches
            or self._deferred is not None
            or self.settings.next_write_no_conflict
        )

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        if key == METADATA_VERSION:
            raise FDBError(CLIENT_INVALID_OPERATION)
        conflict = self._begin_write(key)
        self._count_mutation(len(key) + len(value), 2 * len(key) + 1, conflict)
        _check_lengths(key, value)
        self._writes.mutate(key, atomic.SET, value, conflict)
        if self._watches:
            self._trigger(key, after(key), value)

    def clear(self, key: bytes) -> None:
        """Clear a key. A key over the maximum length cannot exist."""
        conflict = self._begin_write(key)
        if len(key) > max_key_bytes(key):
            return
        self._changes_metadata |= key == METADATA_VERSION
        self._count_mutation(2 * len(key) + 1, 2 * len(key) + 1, conflict)
        self._writes.clear(key, conflict)
        if self._watches:
            self._trigger(key, after(key), None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Clear [begin, end)."""
        if begin > end:
            raise FDBError(INVERTED_RANGE)
        conflict = self._begin_write(None)
        if begin > self._write_end or end > self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        self._count_mutation(len(begin) + len(end), len(begin) + len(end), conflict)
        begin, end = clip(begin), clip(end)
        if begin == end:
            return
        self._changes_metadata |= begin <= METADATA_VERSION < end
        self._writes.clear_range(begin, end, conflict)
        if self._watches:
            self._trigger(begin, end, None)

    def mutate(self, operation: int, key: bytes, operand: bytes) -> None:
        """Apply an atomic operation."""
        if key == METADATA_VERSION:
            conflict = self._begin_write(None)
            if operation != atomic.SET_VERSIONSTAMPED_VALUE or operand != _METADATA_PARAM:
                raise FDBError(CLIENT_INVALID_OPERATION)
            self._changes_metadata = True
        else:
            conflict = self._begin_write(key)
        _check_lengths(key, operand)
        if operation == atomic.SET_VERSIONSTAMPED_KEY:
            start = atomic.stamp_offset(key)
            if start < 0:
                raise FDBError(CLIENT_INVALID_OPERATION)
            self._stamp_key(key, start, operand)
            return
        start = atomic.stamp_offset(operand) if operation == atomic.SET_VERSIONSTAMPED_VALUE else 0
        if start < 0:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self._count_mutation(len(key) + len(operand), 2 * len(key) + 1, conflict)
        if operation == atomic.SET_VERSIONSTAMPED_VALUE:
            self._writes.stamped.append(StampedValue(key, operand, start, conflict))
        else:
            self._writes.mutate(key, operation, operand, conflict)
        if self._watches:
            self._trigger_unknown(key)

    def _stamp_key(self, key: bytes, start: int, value: bytes) -> None:
        self._size += len(key) + len(value) + MUTATION_BYTES
        # The stamp will be later than the read version, if that is known.
        known = self._version or (self._glance.version if self._glance else 0)
        self._writes.stamped.append(StampedKey(key, start, value, known, self._read_end))

    def add_read_conflict_key(self, key: bytes) -> None:
        """Conflict with later writes of other transactions to a key. Each `add` of cq calls it."""
        if self._committing:
            self._protect_commit()
        if key >= USER_END and key != METADATA_VERSION and key >= self._read_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) <= MAX_KEY_BYTES or len(key) <= max_key_bytes(key):  # no stored key is longer
            writes = self._own_writes() if self._writes and not self.settings.ryw_disabled else None
            self._reads.add_key(key, writes)

    def add_read_conflict(self, begin: bytes, end: bytes) -> None:
        """Conflict with later writes of other transactions in [begin, end)."""
        if self._committing:
            self._protect_commit()
        if max(begin, end) > self._read_end and (begin, end) != (METADATA_VERSION, after(METADATA_VERSION)):
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        self._reads.add_range(
            clip(begin), clip(end), None if self.settings.ryw_disabled else self._own_writes()
        )

    def add_write_conflict(self, begin: bytes, end: bytes) -> None:
        """Make reads of other transactions in [begin, end) conflict."""
        if self._committing:
            self._protect_commit()
        if max(begin, end) > self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        begin, end = clip(begin), clip(end)
        if begin < end:
            self._size += len(begin) + len(end) + RANGE_BYTES
            self._writes.add_conflict_range(begin, end)

    def _begin_write(self, key: bytes | None) -> bool:
        """Whether the write adds a write conflict; resets the option `next_write_no_conflict`."""
        settings = self.settings
        conflict = not settings.next_write_no_conflict
        settings.next_write_no_conflict = False
        if self._committing:
            self._protect_commit()
        if key is not None and key >= USER_END and key >= self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        return conflict

    def _count_mutation(self, size: int, conflict_size: int, conflict: bool) -> None:
        self._size += size + MUTATION_BYTES + (conflict_size + RANGE_BYTES if conflict else 0)

    def _trigger(self, begin: bytes, end: bytes, value: bytes | None) -> None:
        """Fire own watches of keys in [begin, end): a write of the same transaction fires them at once."""
        for watch in self._watches:
            if begin <= watch.key < end:
                watch.compare(value)

    def _trigger_unknown(self, key: bytes) -> None:
        for watch in self._watches:
            if watch.key == key:
                watch.settle()


def _check_lengths(key: bytes, value: bytes) -> None:
    if len(key) > MAX_KEY_BYTES and len(key) > max_key_bytes(key):
        raise FDBError(KEY_TOO_LARGE)
    if len(value) > MAX_VALUE_BYTES:
        raise FDBError(VALUE_TOO_LARGE)
