"""The complete inside of a transaction: reads and writes, watches, commit and retry."""

from __future__ import annotations

from itertools import chain

from cq.store.embedded.binding.backoff import BackoffDelays, BackoffFuture
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
from cq.store.embedded.binding.keys import METADATA_VERSION, max_key_bytes
from cq.store.embedded.client.reading import TransactionReads
from cq.store.embedded.client.writing import MUTATION_BYTES, TransactionWrites
from cq.store.embedded.engine.committer import CommitRequest
from cq.store.embedded.engine.watches import Watch
from cq.store.embedded.writes.changes import Changes
from cq.store.embedded.writes.read_set import RANGE_BYTES


class TransactionCore(TransactionReads, TransactionWrites):
    """One transaction with its retries."""

    __slots__ = ()

    # Watches

    def watch(self, key: bytes) -> FutureVoid:
        """Read a key, and watch it from the commit on. An error here does not make the commit fail."""
        try:
            self.check()
            self._check_watch(key)
            value = self._value(key, snapshot=False).get()
        except FDBError as error:
            return failed(FutureVoid, error)
        watch = Watch(self.engine.watches, key, value)
        self._watches.append(watch)
        return watch

    def _check_watch(self, key: bytes) -> None:
        if self.settings.ryw_disabled:
            raise FDBError(WATCHES_DISABLED)
        if key >= self._read_end and key != METADATA_VERSION:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) > max_key_bytes(key):
            raise FDBError(KEY_TOO_LARGE)
        if self.engine.watches.full():
            raise FDBError(TOO_MANY_WATCHES)

    # Commit

    def commit(self) -> FutureVoid:
        """Submit the writes, unless an earlier error, the size or the age of the transaction forbids it."""
        try:
            self.check()
        except FDBError as error:
            return failed(FutureVoid, error)
        self._committing = True
        self._cancellation = Cancellation()  # a commit waits for earlier reads: their results stay valid
        if self._total_size > self.settings.size_limit:
            self._writes.place_stamped()  # overwritten values do not count
        changes = self._writes.changes()
        try:
            self._check_commit(changes)
        except FDBError as error:
            self._release()
            self._drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return failed(FutureVoid, error)
        if changes.empty:
            self._release()
            self._finish(None, None)
            return ready(FutureVoid, None)
        request = self._request = self._make_request(changes)
        self._release()
        self.engine.check_usable()
        self.engine.committer.submit(request)
        return request

    def _check_commit(self, changes: Changes) -> None:
        if self._failure is not None:
            raise FDBError(self._failure.code, self._failure.detail)
        if changes.empty:
            return
        limit = self.settings.size_limit
        if self._total_size > limit and self._exact_size(changes) > limit:
            raise FDBError(TRANSACTION_TOO_LARGE)
        seen = self._snapshot or self._glance
        if self._reads and seen is not None and seen.expired:
            raise FDBError(TRANSACTION_TOO_OLD)

    def _make_request(self, changes: Changes) -> CommitRequest:
        request = CommitRequest(self.engine.committer, changes, self._reads, self._total_size, self._finish)
        # A version set by the caller may be later than its snapshot: the version of the snapshot counts.
        seen = self._snapshot or self._glance
        request.read_version = self._version if seen is None else seen.version
        request.changes_metadata = self._changes_metadata
        request._cancellation = self._cancellation
        if self._deadline is not None:
            request.expires = self._deadline
        return request

    def _finish(self, request: CommitRequest | None, error: FDBError | None) -> None:
        """Handle the result of the commit. Runs in the thread that made the commit."""
        # Compared, since the commit may end in another thread after a `reset` of the transaction.
        if request is not self._request:
            return  # the caller has reset the transaction since, which dropped its futures
        if error is not None:
            self._failure = error
            self._drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return
        self._backoffs = BackoffDelays()
        if request is not None:
            self._committed = request.version
        # Each is dropped after it is done: an interrupted thread begins again.
        if self._stamp is not None:
            if request is None:
                self._stamp.settle(error=FDBError(NO_COMMIT_VERSION))
            else:
                self._stamp.settle(request.versionstamp)
            self._stamp = None
        if self._watches:
            self.engine.watches.add(watch for watch in self._watches if not watch.is_ready())
            self._watches = []

    def committed_version(self) -> int:
        """The version of the commit; -1 without a commit."""
        return self._committed

    def versionstamp(self) -> Key:
        """The future of the versionstamp of this try."""
        try:
            if self._committing:
                self._protect_commit()
            self.check_ended()
        except FDBError as error:
            return failed(Key, error)
        if self._stamp is None:
            self._stamp = Key()
        return self._stamp

    def approximate_size(self) -> FutureInt64:
        """The bytes that count for the size limit so far."""
        if self._deferred is not None:
            return failed(FutureInt64, FDBError(self._deferred))
        return ready(FutureInt64, self._total_size)

    @property
    def _total_size(self) -> int:
        return self._size + self._reads.size

    def _exact_size(self, changes: Changes) -> int:
        """The size without values that later writes of the same transaction overwrote."""
        if self.settings.ryw_disabled:
            return self._total_size
        operations = chain(changes.before_values(), changes.after_values())
        written = chain(changes.values.items(), ((key, value) for _, key, value in operations))
        mutations = sum(len(key) + len(value or key) + MUTATION_BYTES for key, value in written)
        keys = sum(2 * len(key) + 1 + RANGE_BYTES for key in changes.write_keys | self._reads.keys)
        ranges = set(changes.write_ranges) | set(self._reads.ranges)
        return mutations + keys + sum(len(begin) + len(end) + RANGE_BYTES for begin, end in ranges)

    # Retry

    def on_error(self, code: int) -> FutureVoid:
        """Begin another try after a delay, or fail with the error."""
        try:
            self.check_ended()
        except FDBError as error:
            return failed(FutureVoid, error)
        exhausted = 0 <= self.settings.retry_limit <= self._retries
        self._retries += 1
        if exhausted or code not in RETRYABLE:
            self._end(TRANSACTION_CANCELLED)
            return failed(FutureVoid, self._error_of(code or CLIENT_INVALID_OPERATION))
        delay = self._backoffs.next(code, self.settings.max_retry_delay / 1000)
        deadline = self._deadline
        self.settings = self.settings.for_try(self.defaults)
        self._restart()
        return BackoffFuture(delay, deadline, self._cancellation)

    def reset(self) -> None:
        """Begin as a new transaction."""
        self._begin()
        self._restart()

    def _restart(self) -> None:
        self._cancellation.error = TRANSACTION_CANCELLED
        self._release()
        self._drop_futures(TRANSACTION_CANCELLED)
        self._begin_try()

    def cancel(self) -> None:
        """Make every call fail until a reset."""
        self._end(TRANSACTION_CANCELLED)
