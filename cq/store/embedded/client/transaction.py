"""A transaction: its reads and writes, watches, commit and retry, with the methods of the binding."""

from __future__ import annotations

from itertools import chain
from typing import Any

from cq.store import api
from cq.store.embedded.binding.backoff import BackoffDelays
from cq.store.embedded.binding.delayed import delayed
from cq.store.embedded.binding.error import (
    CLIENT_INVALID_OPERATION,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    NO_COMMIT_VERSION,
    RETRYABLE,
    TOO_MANY_WATCHES,
    TRANSACTION_CANCELLED,
    TRANSACTION_INVALID_VERSION,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    WATCHES_DISABLED,
    FDBError,
)
from cq.store.embedded.binding.future import Cancellation, FutureInt64, FutureVoid, Key, failed, ready
from cq.store.embedded.binding.keys import METADATA_VERSION, key_bytes, max_key_bytes
from cq.store.embedded.binding.uncommitted import Stamp
from cq.store.embedded.client.options import TransactionOptions
from cq.store.embedded.client.reading import TransactionRead
from cq.store.embedded.client.settings import Settings
from cq.store.embedded.client.state import TransactionState
from cq.store.embedded.client.writing import MUTATION_BYTES, TransactionWrites
from cq.store.embedded.engine.committer import CommitRequest
from cq.store.embedded.engine.engine import Engine
from cq.store.embedded.engine.watches import Watch
from cq.store.embedded.writes.changes import CommitChanges
from cq.store.embedded.writes.read_set import RANGE_BYTES


class Transaction(TransactionWrites):
    """A transaction: reads one version of the store with its own writes, and commits its writes together."""

    __slots__ = ("options", "snapshot")

    def __init__(self, database: api.Database, engine: Engine, defaults: Settings) -> None:
        super().__init__(database, TransactionState(engine, defaults), False)
        self.options = TransactionOptions(self._state)
        self.snapshot = TransactionRead(database, self._state, True)

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
            return state.failed_at_version(FutureVoid, failure)
        watch = Watch(state.engine.watches, key, value)
        watch.set_deadline(state.deadline)
        state.watches.append(watch)
        return watch

    def _refuse_watch(self, key: bytes) -> FDBError | None:
        state = self._state
        if state.settings.ryw_disabled:
            return FDBError(WATCHES_DISABLED)
        if key >= state.read_end and key != METADATA_VERSION:
            return FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) > max_key_bytes(key):
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
        state.set_deadline_of_futures(None)  # the commit has the deadline; its end makes them ready
        state.cancellation = Cancellation()  # a commit waits for earlier reads: their results stay valid
        if state.total_size > state.settings.size_limit:
            state.writes.place_stamped()  # overwritten values do not count
        changes = state.writes.changes()
        if error := self._refuse_commit(changes):
            state.release()
            state.drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return failed(FutureVoid, error)
        if changes.empty:
            state.release()
            self._finish(None, None)
            return ready(FutureVoid, None)
        request = state.request = self._make_request(changes)
        state.release()
        state.engine.check_usable()
        state.engine.committer.submit(request)
        return request

    def _refuse_commit(self, changes: CommitChanges) -> FDBError | None:
        state = self._state
        if state.failure is not None:
            return FDBError(state.failure.code, state.failure.detail)
        if changes.empty:
            return None
        limit = state.settings.size_limit
        if state.total_size > limit and self._exact_size(changes) > limit:
            return FDBError(TRANSACTION_TOO_LARGE)
        seen = state.snapshot or state.glance
        is_old = state.reads and seen is not None and seen.expired
        return FDBError(TRANSACTION_TOO_OLD) if is_old else None

    def _exact_size(self, changes: CommitChanges) -> int:
        """The size without values that later writes of the same transaction overwrote."""
        state = self._state
        if state.settings.ryw_disabled:
            return state.total_size
        operations = chain(changes.before_values(), changes.after_values())
        written = chain(changes.values.items(), ((key, value) for _, key, value in operations))
        mutations = sum(len(key) + len(value or key) + MUTATION_BYTES for key, value in written)
        keys = sum(2 * len(key) + 1 + RANGE_BYTES for key in changes.write_keys | state.reads.keys)
        ranges = set(changes.write_ranges) | set(state.reads.ranges)
        return mutations + keys + sum(len(begin) + len(end) + RANGE_BYTES for begin, end in ranges)

    def _make_request(self, changes: CommitChanges) -> CommitRequest:
        state = self._state
        request = CommitRequest(state.engine.committer, changes, state.reads, state.total_size, self._finish)
        # A version set by the caller may be later than its snapshot: the version of the snapshot counts.
        seen = state.snapshot or state.glance
        request.read_version = state.version if seen is None else seen.version
        request.changes_metadata = state.changes_metadata
        request._cancellation = state.cancellation
        if state.deadline is not None:
            request.expires = state.deadline
        return request

    def _finish(self, request: CommitRequest | None, error: FDBError | None) -> None:
        """Handle the result of the commit. Runs in the thread that made the commit."""
        state = self._state
        # Compared, since the commit may end in another thread after a `reset` of the transaction.
        if request is not state.request:
            return  # the caller has reset the transaction since, which dropped its futures
        if error is not None:
            state.failure = error
            state.drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return
        state.backoffs = BackoffDelays()
        if request is not None:
            state.committed = request.version
        # Each is dropped after it is done: an interrupted thread begins again.
        if state.stamp is not None:
            if request is None:
                state.stamp.settle(error=FDBError(NO_COMMIT_VERSION))
            else:
                state.stamp.settle(request.versionstamp)
            state.stamp = None
        if state.watches:
            state.engine.watches.add(watch for watch in state.watches if not watch.is_ready())
            state.watches = []

    def get_committed_version(self) -> int:
        """The version of the commit; -1 before it, and for a read-only transaction."""
        return self._state.committed

    def get_versionstamp(self) -> Key:
        """A future of the versionstamp. Call this before `commit`, and wait for the result after it."""
        state = self._state
        if error := state.refusal():
            return failed(Key, error)
        if state.stamp is None:
            state.stamp = Stamp()
            state.stamp.set_deadline(state.deadline)
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
        delay = state.backoffs.next(code, state.settings.max_retry_delay / 1000)
        deadline = state.deadline
        state.settings = state.settings.for_try(state.defaults)
        state.restart()
        return delayed(FutureVoid, delay, None, deadline, state.cancellation)

    def reset(self) -> None:
        """Reset the transaction and its options."""
        self._state.begin()
        self._state.restart()

    def cancel(self) -> None:
        """Cancel the transaction: every call until `reset` raises 1025."""
        self._state.end(TRANSACTION_CANCELLED)
        self._state.release()
