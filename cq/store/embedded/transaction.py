"""A transaction: its writes, conflict ranges, watches, commit and retry, with the methods of the binding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from cq.store import api
from cq.store.api import METADATA_VERSION, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD
from cq.store.embedded import atomic
from cq.store.embedded.committer import CommitRequest
from cq.store.embedded.engine import Engine
from cq.store.embedded.error import (
    CLIENT_INVALID_OPERATION,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    RETRYABLE,
    TOO_MANY_WATCHES,
    TRANSACTION_CANCELLED,
    TRANSACTION_INVALID_VERSION,
    VALUE_TOO_LARGE,
    WATCHES_DISABLED,
    FDBError,
)
from cq.store.embedded.future import Cancellation, Delay, FutureInt64, FutureVoid, Key, failed, ready
from cq.store.embedded.keys import (
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    USER_END,
    KeySelector,
    after,
    clip,
    key_bytes,
    strinc,
    value_bytes,
)
from cq.store.embedded.reading import ReadOperations, TransactionRead
from cq.store.embedded.state import Settings, TransactionState
from cq.store.embedded.watches import Watch
from cq.store.embedded.writes import RANGE_BYTES, StampedKey, StampedValue

MUTATION_BYTES = 44
"""The size of a mutation without its key and value, as FoundationDB counts it."""

_SET_BYTES = MUTATION_BYTES + RANGE_BYTES + 1
_CLEAR_BYTES = _SET_BYTES + 1
_METADATA_PARAM = bytes(14)

# Options of FoundationDB without a meaning for one file (priorities, tags, tracing ...), which are ignored.
_NAMES = (
    "causal_write_risky causal_read_risky causal_read_disable include_port_in_address read_ahead_disable "
    "read_server_side_cache_enable read_server_side_cache_disable read_priority_normal read_priority_low "
    "read_priority_high durability_datacenter durability_risky durability_dev_null_is_web_scale "
    "priority_system_immediate priority_batch initialize_new_database raw_access bypass_storage_quota "
    "debug_retry_logging transaction_logging_enable debug_transaction_identifier log_transaction "
    "transaction_logging_max_field_length server_request_tracing automatic_idempotency lock_aware "
    "read_lock_aware use_provisional_proxies report_conflicting_keys special_key_space_relaxed "
    "special_key_space_enable_writes tag auto_throttle_tag span_parent expensive_clear_cost_estimation_enable "
    "use_grv_cache max_grv_queue_delay authorization_token enable_replica_consistency_check "
    "consistency_check_required_replicas"
)


def ignored(names: str, method: str) -> Callable[..., None]:
    """The method of an option without a meaning for one file; raises `AttributeError` for a name not among these."""
    prefix, _, name = method.partition("_")
    if prefix != "set" or name not in names.split():
        raise AttributeError(f"FoundationDB has no option {method!r}")
    return lambda _=None: None


class TransactionOptions:
    """`tr.options`: the methods of `Settings` and two others. A bad value raises at the next use, as in the binding."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Callable[..., None]:
        state = self._transaction._state
        if name.startswith("set_") and hasattr(Settings, name):
            return partial(state.defer, getattr(state.settings, name))
        return ignored(_NAMES, name)

    def set_timeout(self, milliseconds: int) -> None:
        """See `Settings.set_timeout`."""
        state = self._transaction._state
        state.defer(state.set_timeout, milliseconds)

    def set_read_your_writes_disable(self) -> None:
        """Hide own writes from all reads. Fails with 2000 after the first read or write."""
        state = self._transaction._state
        state.defer(state.disable_read_your_writes)


def _operation(code: int, text: str) -> Callable[[Any, Any, Any], None]:
    """A method for an atomic operation."""

    def operation(self: Any, key: Any, param: Any) -> None:
        self._atomic_operation(code, key, param)

    operation.__doc__ = text
    return operation


class Operations(ReadOperations):
    """The atomic operations, and writes by a prefix and by `[]`.

    `key` and `param` are bytes; `atomic` defines absent keys and other lengths. As in the binding, every atomic
    operation has a second name, with or without the prefix `bit_`.
    """

    __slots__ = ()

    set: Any
    clear: Any
    clear_range: Any
    _atomic_operation: Any

    def clear_range_startswith(self, prefix: Any) -> None:
        """Clear the keys that begin with `prefix`."""
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    add = _operation(atomic.ADD, "Add to a little-endian number; the result has the length of `param`.")
    bit_and = _operation(atomic.AND, "Bitwise and; an absent key gets `param`.")
    bit_or = _operation(atomic.OR, "Bitwise or.")
    bit_xor = _operation(atomic.XOR, "Bitwise exclusive or.")
    append_if_fits = _operation(atomic.APPEND_IF_FITS, "Append to a value, if the result fits.")
    max = _operation(atomic.MAX, "Keep the greater of two little-endian numbers.")
    min = _operation(atomic.MIN, "Keep the smaller of two little-endian numbers; an absent key gets `param`.")
    byte_min = _operation(atomic.BYTE_MIN, "Keep what sorts first; an absent key gets `param`.")
    byte_max = _operation(atomic.BYTE_MAX, "Keep what sorts last.")
    compare_and_clear = _operation(atomic.COMPARE_AND_CLEAR, "Clear a key if it has this value.")
    set_versionstamped_key = _operation(
        atomic.SET_VERSIONSTAMPED_KEY,
        "Set a key that will contain the versionstamp of the commit, at the offset in its last four bytes.",
    )
    set_versionstamped_value = _operation(
        atomic.SET_VERSIONSTAMPED_VALUE,
        "Set a value that will contain the versionstamp of the commit, at the offset in its last four bytes.",
    )


for _name, _each in list(vars(Operations).items()):
    if getattr(_each, "__name__", "") == "operation":
        setattr(Operations, _name.removeprefix("bit_") if _name.startswith("bit_") else f"bit_{_name}", _each)


class Transaction(TransactionRead, Operations):
    """A transaction: reads one version of the store with its own writes, and commits its writes together.

    Errors of writes are deferred to the next call with a result.
    """

    __slots__ = ("snapshot",)

    def __init__(self, database: api.Database, engine: Engine, defaults: Settings) -> None:
        super().__init__(database, TransactionState(engine, defaults), False)
        self.snapshot = TransactionRead(database, self._state, True)

    @property
    def options(self) -> TransactionOptions:
        """The options of the transaction."""
        return TransactionOptions(self)

    # Writes and conflict ranges

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

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self._state.defer(self._mutate, opcode, key_bytes(key), value_bytes(param))

    def _allows_fast_write(self, key: bytes, length: int) -> bool:
        """Whether a write needs no error or option to be handled; true for nearly all writes."""
        state = self._state
        return not (
            key >= USER_END
            or len(key) > MAX_KEY_BYTES
            or length > MAX_VALUE_BYTES
            or state.committing
            or state.deferred is not None
            or state.settings.next_write_no_conflict
        )

    def _clear(self, key: bytes) -> None:
        conflict = self._begin_write(key)
        if len(key) > MAX_KEY_BYTES:
            return  # it cannot exist
        self._state.changes_metadata |= key == METADATA_VERSION
        self._count_mutation(2 * len(key) + 1, 2 * len(key) + 1, conflict)
        self._state.writes.clear(key, conflict)

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
        if len(key) > MAX_KEY_BYTES:
            raise FDBError(KEY_TOO_LARGE)
        if len(operand) > MAX_VALUE_BYTES:
            raise FDBError(VALUE_TOO_LARGE)
        if operation == atomic.SET_VERSIONSTAMPED_KEY:
            state.size += len(key) + len(operand) + MUTATION_BYTES
            # The stamp will be later than the read version, if that is known.
            known = state.version or (state.glance.version if state.glance else 0)
            state.writes.stamped.append(StampedKey(key, _stamp_offset(key), operand, known, state.read_end))
            return
        self._count_mutation(len(key) + len(operand), 2 * len(key) + 1, conflict)
        if operation == atomic.SET_VERSIONSTAMPED_VALUE:
            state.writes.stamped.append(StampedValue(key, operand, _stamp_offset(operand)))
            if conflict:
                state.writes.write_keys.add(key)
        else:
            state.writes.mutate(key, operation, operand, conflict)

    def add_read_conflict_key(self, key: Any) -> None:
        """Conflict with writes of other transactions to a key."""
        key = key_bytes(key)
        self.add_read_conflict_range(key, after(key))

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

    # Watches

    def watch(self, key: Any) -> FutureVoid:
        """A future that becomes ready when, after the commit, the key has another value than in this transaction.

        An error here does not make the commit fail.
        """
        key, state = key_bytes(key), self._state
        if error := state.refusal() or self._refuse_watch(key):
            return failed(FutureVoid, error)
        try:
            value = self._value(key).get()
        except FDBError as failure:
            return failed(FutureVoid, failure)
        watch = Watch(state.engine.watches, key, value)
        state.watches.append(watch)
        return watch

    def _refuse_watch(self, key: bytes) -> FDBError | None:
        state = self._state
        if state.settings.ryw_disabled:
            return FDBError(WATCHES_DISABLED)
        if key >= state.read_end and key != METADATA_VERSION:
            return FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) > MAX_KEY_BYTES:
            return FDBError(KEY_TOO_LARGE)
        return FDBError(TOO_MANY_WATCHES) if state.engine.watches.full() else None

    # Commit

    def set_read_version(self, version: int) -> None:
        """Set the read version. Only the latest version can be read; with an older one, reads fail with 1007."""
        self._state.defer(self._state.set_read_version, version)

    def commit(self) -> FutureVoid:
        """Commit. When `wait()` returns, the writes are on disk (see `power_safe`) and every later read sees them.

        Fails with 1020 if another commit wrote a key that this transaction read, with 1007 if it is older than five
        seconds, with 2101 if it is too large, and with the error of any of its reads.
        """
        state = self._state
        if refusal := state.refusal():
            return failed(FutureVoid, refusal)
        state.committing = True
        state.cancellation = Cancellation()  # a commit waits for earlier reads: their results stay valid
        if state.total_size > state.settings.size_limit:
            state.writes.place_stamped()  # overwritten values do not count
        if error := self._refuse_commit():
            state.release()
            state.drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return failed(FutureVoid, error)
        if state.writes.empty:
            state.release()
            state.finish(None, None)
            return ready(FutureVoid, None)
        request = self._make_request()
        state.release()
        state.engine.check_usable()
        state.engine.committer.submit(request)
        return request

    def _refuse_commit(self) -> FDBError | None:
        state = self._state
        if state.failure is not None:
            return FDBError(state.failure.code, state.failure.detail)
        if state.writes.empty:
            return None
        limit = state.settings.size_limit
        if state.total_size > limit and self._exact_size() > limit:
            return FDBError(TRANSACTION_TOO_LARGE)
        is_old = state.reads and state.seen is not None and state.seen.expired
        return FDBError(TRANSACTION_TOO_OLD) if is_old else None

    def _exact_size(self) -> int:
        """The size without values that later writes of the same transaction overwrote."""
        state = self._state
        if state.settings.ryw_disabled:
            return state.total_size
        writes = state.writes
        operations = chain(writes.before_values(), writes.after_values())
        written = chain(writes.values.items(), ((key, value) for _, key, value in operations))
        mutations = sum(len(key) + len(value or key) + MUTATION_BYTES for key, value in written)
        keys = sum(2 * len(key) + 1 + RANGE_BYTES for key in writes.write_keys | state.reads.keys)
        ranges = set(writes.write_ranges) | set(state.reads.ranges)
        return mutations + keys + sum(len(begin) + len(end) + RANGE_BYTES for begin, end in ranges)

    def _make_request(self) -> CommitRequest:
        state = self._state
        request = CommitRequest(
            state.engine.committer, state.writes, state.reads, state.total_size, state.finish
        )
        # A version set by the caller may be later than its snapshot: the version of the snapshot counts.
        request.read_version = state.version if state.seen is None else state.seen.version
        request.changes_metadata = state.changes_metadata
        request._cancellation = state.cancellation
        if state.deadline is not None:
            request.expires = state.deadline
        return request

    def get_committed_version(self) -> int:
        """The version of the commit; -1 before it, and for a read-only transaction."""
        return self._state.committed

    def get_versionstamp(self) -> Key:
        """A future of the versionstamp. Call this before `commit`, and wait for the result after it."""
        state = self._state
        if error := state.refusal():
            return failed(Key, error)
        if state.stamp is None:
            state.stamp = Key()
        return state.stamp

    def get_approximate_size(self) -> FutureInt64:
        """The bytes that count for the size limit so far."""
        state = self._state
        if state.deferred is not None:
            return failed(FutureInt64, FDBError(state.deferred))
        return ready(FutureInt64, state.total_size)

    # Retry

    def on_error(self, error: Any) -> FutureVoid:
        """Prepare a retry after an error: when `wait()` returns, the transaction is reset and can be run again.

        Otherwise `wait()` raises: the error itself, if it is not retryable.
        """
        code = error.code if isinstance(error, FDBError) else error
        if not isinstance(code, int):
            raise error
        state = self._state
        if end_error := state.end_error():
            return failed(FutureVoid, end_error)
        exhausted = 0 <= state.settings.retry_limit <= state.retries
        state.retries += 1
        if exhausted or code not in RETRYABLE:
            state.end(TRANSACTION_CANCELLED)
            return failed(FutureVoid, state.error_of(code or CLIENT_INVALID_OPERATION))
        delay = state.next_delay(code)
        self._begin_try(state)
        return Delay(delay, self._state.deadline, self._state.cancellation)

    def reset(self) -> None:
        """Reset the transaction and its options."""
        self._begin_try(None)

    def _begin_try(self, former: TransactionState | None) -> None:
        state = self._state
        state.close()
        self._state = self.snapshot._state = TransactionState(state.engine, state.defaults, former)

    def cancel(self) -> None:
        """Cancel the transaction: every call until `reset` raises 1025."""
        self._state.end(TRANSACTION_CANCELLED)
        self._state.release()


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
