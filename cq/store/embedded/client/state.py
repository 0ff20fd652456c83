"""The state of a transaction, and the ways in which its calls fail.

A transaction fails in four ways, as with FoundationDB's client:

- an error of a call without a result (`set`, `clear` ...) is *deferred*: every later call raises it;
- an error of a read is raised, and makes the commit fail with the same error;
- a transaction has *ended* when it is cancelled or timed out, or when `on_error` raises: every later call raises this;
- a call after `commit` raises 2017, and ends the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq import runtime
from cq.store.embedded.binding.backoff import BackoffDelays
from cq.store.embedded.binding.error import (
    CLIENT_INVALID_OPERATION,
    FUTURE_VERSION,
    READ_VERSION_ALREADY_SET,
    TRANSACTION_CANCELLED,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_OLD,
    USED_DURING_COMMIT,
    VERSION_INVALID,
    FDBError,
)
from cq.store.embedded.binding.future import Cancellation, FutureInt64, Key, failed, ready
from cq.store.embedded.binding.keys import METADATA_VERSION, SYSTEM_END, USER_END
from cq.store.embedded.client.settings import Settings
from cq.store.embedded.engine.committer import CommitRequest
from cq.store.embedded.engine.engine import Engine
from cq.store.embedded.engine.watches import Watch
from cq.store.embedded.snapshots.snapshots import Snapshot, VersionGlance
from cq.store.embedded.writes.read_set import ReadSet
from cq.store.embedded.writes.writes import Writes

_FUTURE_VERSIONS = 1_000_000


class TransactionState:
    """The state of one transaction, across its retries."""

    __slots__ = (
        "_backoffs",
        "_cancellation",
        "_changes_metadata",
        "_committed",
        "_committing",
        "_deadline",
        "_deferred",
        "_ended",
        "_failure",
        "_glance",
        "_has_read",
        "_reads",
        "_request",
        "_retries",
        "_size",
        "_snapshot",
        "_stamp",
        "_started",
        "_version",
        "_watches",
        "_writes",
        "defaults",
        "engine",
        "settings",
    )

    def __init__(self, engine: Engine, defaults: Settings) -> None:
        # The engine stays open as long as a transaction, or a future of it, is in use.
        self.engine = engine
        self.defaults = defaults
        self._snapshot: Snapshot | None = None
        self._watches: list[Watch] = []
        self._stamp: Key | None = None
        self._begin()
        self._begin_try()

    def _begin(self) -> None:
        self._started = runtime.monotonic()
        self.settings = self.defaults.for_try(self.defaults)
        self._backoffs = BackoffDelays()
        self._retries = 0

    def _begin_try(self) -> None:
        self._cancellation = Cancellation()
        self._writes = Writes()
        self._reads = ReadSet()
        self._glance: VersionGlance | None = None
        self._changes_metadata = False
        self._version: int | None = None  # set by the caller, or of the snapshot
        self._deferred: int | None = None
        self._ended: int | None = None
        self._failure: FDBError | None = None  # the error of a read or of the commit
        self._committing = False
        self._request: CommitRequest | None = None
        self._committed = -1
        self._size = 0
        self._has_read = False
        self._deadline: float | None = None
        self.restart_timeout()

    def __del__(self) -> None:
        # May run in any thread at any moment: see `Snapshot.abandon`.
        if not hasattr(self, "_cancellation"):  # after ^C in `__init__`
            return
        self._cancellation.error = TRANSACTION_CANCELLED
        if self._snapshot is not None:
            self._snapshot.abandon()
        self._drop_futures(TRANSACTION_CANCELLED)

    # Errors

    def check(self) -> None:
        """Raise the error that every call with a result must raise first, if there is one."""
        if self._deferred is not None:
            raise FDBError(self._deferred)
        if self._committing:
            self._protect_commit()
        if self._deadline is not None or self._ended is not None:
            self.check_ended()

    def check_ended(self) -> None:
        """Raise the error that ended the transaction, if it has ended."""
        self._time_out_if_due()
        if self._ended is not None:
            raise self._error_of(self._ended)

    def _time_out_if_due(self) -> None:
        if self._ended is None and self._deadline is not None and runtime.monotonic() >= self._deadline:
            self._ended = TRANSACTION_TIMED_OUT
            self._drop_futures(TRANSACTION_TIMED_OUT)  # not the reads, which have arrived before

    def _error_of(self, code: int) -> FDBError:
        """The error with this code, and with the detail if a read or the commit failed with it."""
        failure = self._failure
        return FDBError(code, failure.detail if failure is not None and failure.code == code else "")

    def defer(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call without a result, and defer its error to later calls. Skip it if there is a deferred error."""
        if self._deferred is None:
            try:
                call(*arguments)
            except FDBError as error:
                self._deferred = error.code

    def _protect_commit(self) -> None:
        if self.settings.protect_commit:
            self._end(USED_DURING_COMMIT)
        raise FDBError(USED_DURING_COMMIT)

    def _end(self, code: int) -> None:
        """Make every later call fail, and all futures that are not ready, so that no thread waits for them."""
        if self._ended is None:
            self._ended = self._cancellation.error = code
            self._drop_futures(code)

    def _record_failure(self, error: FDBError) -> FDBError:
        """Record and return the error of a read; the commit fails with the first one."""
        if self._failure is None:
            self._failure = error
        return error

    # Options

    def restart_timeout(self) -> None:
        """Apply the timeout, which counts from the beginning of the transaction."""
        self._time_out_if_due()  # a longer timeout does not revive the transaction
        timeout = self.settings.timeout
        self._deadline = self._started + timeout / 1000 if timeout else None

    def disable_read_your_writes(self) -> None:
        """Make reads ignore own writes."""
        if self._has_read or not self._writes.untouched:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self.settings.ryw_disabled = True

    @property
    def _read_end(self) -> bytes:
        return SYSTEM_END if self.settings.read_system else USER_END

    @property
    def _write_end(self) -> bytes:
        return SYSTEM_END if self.settings.access_system else USER_END

    def _own_writes(self) -> Writes:
        """The writes, with versionstamped ones merged, for a read that must see them."""
        if self._writes.stamped:
            self._writes.place_stamped()
        return self._writes

    # Versions

    def read_version(self) -> FutureInt64:
        """A future of the read version. Takes a snapshot if the transaction has none."""
        try:
            if self._deferred is not None:
                raise FDBError(self._deferred)
            self.check_ended()
            if self._version is not None:
                return ready(FutureInt64, self._version)
            self._take_snapshot()
            if self._committing:
                self._release()
        except FDBError as error:
            return failed(FutureInt64, error)
        return ready(FutureInt64, self._version, self._cancellation)

    def set_read_version(self, version: int) -> None:
        """Set the read version. The first read fails if its snapshot is of a later version."""
        if self._version is not None or self._glance is not None:
            raise FDBError(READ_VERSION_ALREADY_SET)
        if version <= 0:
            raise FDBError(VERSION_INVALID)
        self._version = version

    def _take_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            snapshot = self.engine.snapshot()
            code = self._check_version(snapshot.version)
            if self._glance is not None and snapshot.get(METADATA_VERSION) != self._glance.metadata:
                code = TRANSACTION_TOO_OLD  # the glance is of another version
            if code:
                snapshot.close()
                raise FDBError(code)
            self._version = self._version or snapshot.version
            self._snapshot = snapshot
        return self._snapshot

    def _check_version(self, version: int) -> int:
        """The error code if the version set by the caller cannot be read now; otherwise 0."""
        if self._version is None:
            return 0
        if self._version < version:
            return TRANSACTION_TOO_OLD  # only the latest version can be read
        return FUTURE_VERSION if self._version > version + _FUTURE_VERSIONS else 0

    def _release(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    # Futures that depend on the commit

    def _drop_futures(self, stamp_code: int, watch_code: int | None = None) -> None:
        """Fail the versionstamp and the watches of this try."""
        watches, stamp = self._watches, self._stamp
        self._watches, self._stamp = [], None
        if stamp is not None:
            stamp.settle(error=FDBError(stamp_code))
        for watch in watches:
            watch.settle(error=FDBError(watch_code or stamp_code))
