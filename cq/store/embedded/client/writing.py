"""The writes and conflict ranges of a transaction, with their checks, sizes and effects on own watches."""

from __future__ import annotations

from typing import Any

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
    KeySelector,
    after,
    clip,
    key_bytes,
    max_key_bytes,
    value_bytes,
)
from cq.store.embedded.client.operations import Operations
from cq.store.embedded.client.reading import TransactionRead
from cq.store.embedded.writes.changes import StampedKey, StampedValue
from cq.store.embedded.writes.read_set import RANGE_BYTES

MUTATION_BYTES = 44
"""The size of a mutation without its key and value, as FoundationDB counts it."""

_SET_BYTES = MUTATION_BYTES + RANGE_BYTES + 1
_CLEAR_BYTES = _SET_BYTES + 1
_STAMPED_BYTES = STAMP_BYTES + 4
_METADATA_PARAM = bytes(14)


class TransactionWrites(TransactionRead, Operations):
    """The writes of a transaction. Their errors are deferred to the next call with a result."""

    __slots__ = ()

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        if type(key) is not bytes or type(value) is not bytes:  # two calls saved in the most frequent write
            key, value = key_bytes(key), value_bytes(value)
        state, length = self._state, len(value)
        if self._allows_fast_write(key, length) and state.writes.fast_put(key, value):
            state.size += 3 * len(key) + length + _SET_BYTES
        else:
            state.defer(self._mutate, atomic.SET, key, value)

    def clear(self, key: Any) -> None:
        """Clear a key."""
        key = self._bound(key)
        if self._allows_fast_write(key, 0) and self._state.writes.fast_put(key, None):
            self._state.size += 4 * len(key) + _CLEAR_BYTES
        else:
            self._state.defer(self._clear, key)

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys from `begin` to before `end`; None for an end of the key space."""
        first = self._bound(b"" if begin is None else begin)
        last = self._bound(USER_END if end is None else end)
        self._state.defer(self._clear_range, first, last)

    def _bound(self, key: Any) -> bytes:
        return key_bytes(self.get_key(key) if isinstance(key, KeySelector) else key)

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        """Set a key that will contain the versionstamp of the commit, at the offset in its last four bytes."""
        key, param = key_bytes(key), value_bytes(param)
        start = int.from_bytes(key[-4:], "little")
        if start <= len(key) - _STAMPED_BYTES and self._allows_fast_write(key, len(param)):
            self._stamp_key(key, start, param)
        else:
            self._state.defer(self._mutate, atomic.SET_VERSIONSTAMPED_KEY, key, param)

    def set_versionstamped_value(self, key: Any, param: Any) -> None:
        """Set a value that will contain the versionstamp of the commit, at the offset in its last four bytes."""
        key, param = key_bytes(key), value_bytes(param)
        start = int.from_bytes(param[-4:], "little")
        if start <= len(param) - _STAMPED_BYTES and self._allows_fast_write(key, len(param)):
            self._state.size += 3 * len(key) + len(param) + _SET_BYTES
            self._state.writes.stamped.append(StampedValue(key, param, start, True))
        else:
            self._state.defer(self._mutate, atomic.SET_VERSIONSTAMPED_VALUE, key, param)

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self._state.defer(self._mutate, opcode, key_bytes(key), value_bytes(param))

    def _allows_fast_write(self, key: bytes, length: int) -> bool:
        """Whether a write needs no error, option or watch to be handled; true for nearly all writes."""
        state = self._state
        return not (
            key >= USER_END
            or len(key) > MAX_KEY_BYTES
            or length > MAX_VALUE_BYTES
            or state.committing
            or state.watches
            or state.deferred is not None
            or state.settings.next_write_no_conflict
        )

    def _clear(self, key: bytes) -> None:
        conflict = self._begin_write(key)
        if len(key) > max_key_bytes(key):
            return  # it cannot exist
        self._state.changes_metadata |= key == METADATA_VERSION
        self._count_mutation(2 * len(key) + 1, 2 * len(key) + 1, conflict)
        self._state.writes.clear(key, conflict)
        self._trigger(key, after(key), None)

    def _clear_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise FDBError(INVERTED_RANGE)
        conflict = self._begin_write(None)
        if end > self._state.write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        self._count_mutation(len(begin) + len(end), len(begin) + len(end), conflict)
        begin, end = clip(begin), clip(end)
        if begin == end:
            return
        self._state.changes_metadata |= begin <= METADATA_VERSION < end
        self._state.writes.clear_range(begin, end, conflict)
        self._trigger(begin, end, None)

    def _mutate(self, operation: int, key: bytes, operand: bytes) -> None:
        """Set a key, or apply an atomic operation."""
        state = self._state
        if key == METADATA_VERSION:
            conflict = self._begin_write(None)
            if operation != atomic.SET_VERSIONSTAMPED_VALUE or operand != _METADATA_PARAM:
                raise FDBError(CLIENT_INVALID_OPERATION)
            state.changes_metadata = True
        else:
            conflict = self._begin_write(key)
        if len(key) > MAX_KEY_BYTES and len(key) > max_key_bytes(key):
            raise FDBError(KEY_TOO_LARGE)
        if len(operand) > MAX_VALUE_BYTES:
            raise FDBError(VALUE_TOO_LARGE)
        if operation == atomic.SET_VERSIONSTAMPED_KEY:
            self._stamp_key(key, _stamp_offset(key), operand)
            return
        self._count_mutation(len(key) + len(operand), 2 * len(key) + 1, conflict)
        if operation == atomic.SET_VERSIONSTAMPED_VALUE:
            state.writes.stamped.append(StampedValue(key, operand, _stamp_offset(operand), conflict))
        else:
            state.writes.mutate(key, operation, operand, conflict)
        if operation == atomic.SET:
            self._trigger(key, after(key), operand)
        else:
            for watch in state.watches:
                if watch.key == key:  # its new value is not known
                    watch.settle()

    def _stamp_key(self, key: bytes, start: int, value: bytes) -> None:
        state = self._state
        state.size += len(key) + len(value) + MUTATION_BYTES
        # The stamp will be later than the read version, if that is known.
        known = state.version or (state.glance.version if state.glance else 0)
        state.writes.stamped.append(StampedKey(key, start, value, known, state.read_end))

    def add_read_conflict_key(self, key: Any) -> None:
        """Conflict with writes of other transactions to a key."""
        self._state.defer(self._add_read_conflict_key, key_bytes(key))

    def _add_read_conflict_key(self, key: bytes) -> None:
        # Each `add` of cq calls it, so it does not call `_add_read_conflict`.
        state = self._state
        if state.committing:
            raise state.used_during_commit()
        if key >= USER_END and key != METADATA_VERSION and key >= state.read_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) <= MAX_KEY_BYTES or len(key) <= max_key_bytes(key):  # no stored key is longer
            writes = state.own_writes() if state.writes and not state.settings.ryw_disabled else None
            state.reads.add_key(key, writes)

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with writes of other transactions in [begin, end); an inverted range raises 2005 at once."""
        self._state.defer(self._add_read_conflict, *_ordered(begin, end))

    def _add_read_conflict(self, begin: bytes, end: bytes) -> None:
        state = self._state
        if state.committing:
            raise state.used_during_commit()
        if end > state.read_end and (begin, end) != (METADATA_VERSION, after(METADATA_VERSION)):
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        writes = None if state.settings.ryw_disabled else state.own_writes()
        state.reads.add_range(clip(begin), clip(end), writes)

    def add_write_conflict_key(self, key: Any) -> None:
        """Conflict with reads of a key by other transactions."""
        key = key_bytes(key)
        self.add_write_conflict_range(key, after(key))

    def add_write_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with reads of other transactions in [begin, end); an inverted range raises 2005 at once."""
        self._state.defer(self._add_write_conflict, *_ordered(begin, end))

    def _add_write_conflict(self, begin: bytes, end: bytes) -> None:
        state = self._state
        if state.committing:
            raise state.used_during_commit()
        if end > state.write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        begin, end = clip(begin), clip(end)
        if begin < end:
            state.size += len(begin) + len(end) + RANGE_BYTES
            state.writes.add_conflict_range(begin, end)

    def _begin_write(self, key: bytes | None) -> bool:
        """Whether the write adds a write conflict; resets the option `next_write_no_conflict`."""
        state = self._state
        conflict = not state.settings.next_write_no_conflict
        state.settings.next_write_no_conflict = False
        if state.committing:
            raise state.used_during_commit()
        if key is not None and key >= USER_END and key >= state.write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        return conflict

    def _count_mutation(self, size: int, conflict_size: int, conflict: bool) -> None:
        self._state.size += size + MUTATION_BYTES + (conflict_size + RANGE_BYTES if conflict else 0)

    def _trigger(self, begin: bytes, end: bytes, value: bytes | None) -> None:
        """Fire own watches of keys in [begin, end): a write of the same transaction fires them at once."""
        for watch in self._state.watches:
            if begin <= watch.key < end:
                watch.compare(value)


def _stamp_offset(param: bytes) -> int:
    start = atomic.stamp_offset(param)
    if start < 0:
        raise FDBError(CLIENT_INVALID_OPERATION)
    return start


def _ordered(begin: Any, end: Any) -> tuple[bytes, bytes]:
    first, last = key_bytes(begin), key_bytes(end)
    if first > last:
        raise FDBError(INVERTED_RANGE)
    return first, last
