"""The transaction classes of the embedded store, with the binding's methods; `client` has their implementation."""

from __future__ import annotations

from functools import partial
from typing import Any

from cq.store import api
from cq.store.embedded.binding.error import INVERTED_RANGE, FDBError
from cq.store.embedded.binding.future import FutureInt64, FutureKeyArray, FutureVoid, Key, Value
from cq.store.embedded.binding.keys import USER_END, KeySelector, after, key_bytes, strinc, value_bytes
from cq.store.embedded.client.core import TransactionCore
from cq.store.embedded.client.range import ITERATOR, FDBRange
from cq.store.embedded.client.settings import Settings
from cq.store.embedded.engine.engine import Engine
from cq.store.embedded.operations import AtomicOperations
from cq.store.embedded.options import TransactionOptions
from cq.store.embedded.writes.read_set import OffsetSelector, RangeRequest


class TransactionRead:
    """Reads. The reads of a transaction add read conflicts, those of `tr.snapshot` do not."""

    __slots__ = ("__weakref__", "_core", "_database", "_snapshot", "cq_noted")

    def __init__(self, database: api.Database, core: TransactionCore, snapshot: bool) -> None:
        self._database = database
        self._core = core
        self._snapshot = snapshot
        self.cq_noted: Any = None  # see `cq.store.own_writes`

    @property
    def db(self) -> api.Database:
        """The database it belongs to."""
        return self._database

    def get(self, key: Any) -> Value:
        """The value of a key."""
        # The fast path excludes what `key_bytes` would convert.
        if self._snapshot and type(key) is bytes and (read := self._core.fast_get(key)) is not None:
            return read
        return self._core.read_value(key_bytes(key), self._snapshot)

    def get_key(self, key_selector: KeySelector) -> Key:
        """The key that a selector resolves to; b"" before the first key, the end of the key space after the last."""
        return self._core.read_key(_offset_selector(key_selector), self._snapshot)

    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = ITERATOR
    ) -> FDBRange:
        """The rows from `begin` to before `end`: keys or selectors, or None for an end of the key space.

        The first piece is read now, the others by the iteration, all of the same version. `limit` 0 or -1 means all
        rows; `streaming_mode` is one of the binding's numbers.
        """
        first = _offset_selector(b"" if begin is None else begin)
        last = _offset_selector(USER_END if end is None else end)
        request = RangeRequest(first, last, 0 if limit == -1 else limit, bool(reverse), streaming_mode)
        return FDBRange(partial(self._core.read_range, snapshot=self._snapshot), request)

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> FDBRange:
        """The rows whose keys begin with `prefix`."""
        prefix = key_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def get_read_version(self) -> FutureInt64:
        """The version that reads see. It includes every commit that returned before it was taken."""
        return self._core.read_version()

    def get_estimated_range_size_bytes(self, begin_key: Any, end_key: Any) -> FutureInt64:
        """The bytes of committed keys and values in [begin_key, end_key)."""
        return self._core.range_size(key_bytes(begin_key), key_bytes(end_key))

    def get_range_split_points(
        self, begin_key: Any, end_key: Any, chunk_size: int, limit: int = -1
    ) -> FutureKeyArray:
        """Keys that cut [begin_key, end_key) into parts of about `chunk_size` bytes, both ends included."""
        if chunk_size <= 0:
            raise ValueError("Invalid begin key, end key or chunk size")
        return self._core.split_points(key_bytes(begin_key), key_bytes(end_key), chunk_size, limit)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)


class Transaction(TransactionRead, AtomicOperations):
    """A transaction: reads one version of the store with its own writes, and commits its writes together."""

    __slots__ = ("options", "snapshot")

    def __init__(self, database: api.Database, engine: Engine, defaults: Settings) -> None:
        super().__init__(database, TransactionCore(engine, defaults), False)
        self.options = TransactionOptions(self._core)
        self.snapshot = TransactionRead(database, self._core, True)

    # Writes. Their errors are deferred to the next call with a result.

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        core = self._core
        if type(key) is not bytes or type(value) is not bytes or not core.fast_put(key, value):
            core.defer(core.set, key_bytes(key), value_bytes(value))

    def clear(self, key: Any) -> None:
        """Clear a key."""
        if isinstance(key, KeySelector):
            key = self.get_key(key)  # a future, which `key_bytes` waits for
        if type(key) is not bytes or not self._core.fast_put(key, None):
            self._core.defer(self._core.clear, key_bytes(key))

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys from `begin` to before `end`; None for an end of the key space."""
        first = self._bound(b"" if begin is None else begin)
        last = self._bound(USER_END if end is None else end)
        self._core.defer(self._core.clear_range, first, last)

    def clear_range_startswith(self, prefix: Any) -> None:
        """Clear the keys that begin with `prefix`."""
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def _bound(self, key: Any) -> bytes:
        return key_bytes(self.get_key(key) if isinstance(key, KeySelector) else key)

    def set_versionstamped_key(self, key: Any, param: Any) -> None:
        """Set a key that will contain the versionstamp of the commit, at the offset in its last four bytes."""
        if type(key) is not bytes or type(param) is not bytes or not self._core.fast_stamp_key(key, param):
            super().set_versionstamped_key(key, param)

    def set_versionstamped_value(self, key: Any, param: Any) -> None:
        """Set a value that will contain the versionstamp of the commit, at the offset in its last four bytes."""
        if type(key) is not bytes or type(param) is not bytes or not self._core.fast_stamp_value(key, param):
            super().set_versionstamped_value(key, param)

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self._core.defer(self._core.mutate, opcode, key_bytes(key), value_bytes(param))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    # Conflict ranges

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with writes of other transactions in [begin, end); an inverted range raises 2005 at once."""
        first, last = _ordered(begin, end)
        self._core.defer(self._core.add_read_conflict, first, last)

    def add_read_conflict_key(self, key: Any) -> None:
        """Conflict with writes of other transactions to a key."""
        self._core.defer(self._core.add_read_conflict_key, key_bytes(key))

    def add_write_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with reads of other transactions in [begin, end); an inverted range raises 2005 at once."""
        first, last = _ordered(begin, end)
        self._core.defer(self._core.add_write_conflict, first, last)

    def add_write_conflict_key(self, key: Any) -> None:
        """Conflict with reads of a key by other transactions."""
        key = key_bytes(key)
        self.add_write_conflict_range(key, after(key))

    # Life cycle

    def watch(self, key: Any) -> FutureVoid:
        """A future that becomes ready when, after the commit, the key has another value than in this transaction."""
        return self._core.watch(key_bytes(key))

    def set_read_version(self, version: int) -> None:
        """Set the read version. Only the latest version can be read; with an older one, reads fail with 1007."""
        self._core.defer(self._core.set_read_version, version)

    def commit(self) -> FutureVoid:
        """Commit. When `wait()` returns, the writes are on disk (see `power_safe`) and every later read sees them.

        Fails with 1020 if another commit wrote a key that this transaction read, with 1007 if it is older than five
        seconds, with 2101 if it is too large, and with the error of any of its reads.
        """
        return self._core.commit()

    def on_error(self, error: Any) -> FutureVoid:
        """Prepare a retry after an error: when `wait()` returns, the transaction is reset and can be run again.

        Otherwise `wait()` raises: the error itself, if it is not retryable.
        """
        if isinstance(error, FDBError):
            error = error.code
        if not isinstance(error, int):
            raise error
        return self._core.on_error(error)

    def get_committed_version(self) -> int:
        """The version of the commit; -1 before it, and for a read-only transaction."""
        return self._core.committed_version()

    def get_versionstamp(self) -> Key:
        """A future of the versionstamp. Call this before `commit`, and wait for the result after it."""
        return self._core.versionstamp()

    def get_approximate_size(self) -> FutureInt64:
        """The bytes that count for the size limit so far."""
        return self._core.approximate_size()

    def reset(self) -> None:
        """Reset the transaction and its options."""
        self._core.reset()

    def cancel(self) -> None:
        """Cancel the transaction: every call until `reset` raises 1025."""
        self._core.cancel()


def _offset_selector(selector: Any) -> OffsetSelector:
    """A key or a selector as an `OffsetSelector`. A selector with `or_equal` starts directly after the key."""
    if not isinstance(selector, KeySelector):
        return OffsetSelector(key_bytes(selector), 1)
    key = key_bytes(selector.key)
    return OffsetSelector(after(key) if selector.or_equal else key, selector.offset)


def _ordered(begin: Any, end: Any) -> tuple[bytes, bytes]:
    first, last = key_bytes(begin), key_bytes(end)
    if first > last:
        raise FDBError(INVERTED_RANGE)
    return first, last
