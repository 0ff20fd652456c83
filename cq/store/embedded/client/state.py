"""The state of a transaction, and when its calls fail.

A transaction fails in four ways, which are kept apart as FoundationDB's client does:

- a call without a result (`set`, `clear` ...) that is wrong has its error *deferred*: every later call raises it;
- an error of a read, apart from being raised, makes the commit fail with the same error;
- a transaction that is cancelled, timed out, or given up by `on_error` has *ended*: every later call raises that;
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
from cq.store.embedded.binding.future import Flight, FutureInt64, Key, failed, ready
from cq.store.embedded.binding.keys import METADATA_VERSION, SYSTEM_END, USER_END
from cq.store.embedded.client.settings import Defaults, Settings
from cq.store.embedded.engine.committer import CommitRequest
from cq.store.embedded.engine.engine import Engine
from cq.store.embedded.engine.watches import Watch
from cq.store.embedded.snapshots.snapshots import Snapshot, VersionGlance
from cq.store.embedded.writes.read_set import ReadSet
from cq.store.embedded.writes.writes import Writes

_FUTURE_VERSIONS = 1_000_000


class TransactionState:
    """What a transaction knows of itself."""

    __slots__ = (
        "_backoffs",
        "_changes_metadata",
        "_committed",
        "_committing",
        "_deadline",
        "_deferred",
        "_ended",
        "_failure",
        "_flight",
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

    def __init__(self, engine: Engine, defaults: Defaults) -> None:
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
        self.settings = Settings(self.defaults)
        self._backoffs = BackoffDelays()
        self._retries = 0

    def _begin_try(self) -> None:
        self._flight = Flight()
        self._writes = Writes()
        self._reads = ReadSet()
        self._glance: VersionGlance | None = None
        self._changes_metadata = False
        self._version: int | None = None  # as set, or as shown to the owner
        self._deferred: int | None = None
        self._ended: int | None = None
        self._failure: FDBError | None = None  # of a read, or of the commit
        self._committing = False
        self._request: CommitRequest | None = None
        self._committed = -1
        self._size = 0
        self._has_read = False
        self._deadline: float | None = None
        self.restart_timeout()

    def __del__(self) -> None:
        # May run anywhere: see `Snapshot.abandon`. Also after ^C in `__init__`, which sets `_flight` last of these.
        if not hasattr(self, "_flight"):
            return
        self._flight.error = TRANSACTION_CANCELLED
        if self._snapshot is not None:
            self._snapshot.abandon()
        self._drop_futures(TRANSACTION_CANCELLED)

    # The ways to fail

    def check(self) -> None:
        """Raise what a call with a result raises before it does anything."""
        if self._deferred is not None:
            raise FDBError(self._deferred)
        if self._committing:
            self._protect_commit()
        if self._deadline is not None or self._ended is not None:
            self.check_ended()

    def check_ended(self) -> None:
        """Raise what ended the transaction."""
        if self._deadline is not None and runtime.monotonic() >= self._deadline:
            self._end(TRANSACTION_TIMED_OUT)
        if self._ended is not None:
            raise self._error_of(self._ended)

    def _error_of(self, code: int) -> FDBError:
        """The error with this code; it says more if that is how a read or the commit has failed."""
        failure = self._failure
        return FDBError(code, failure.detail if failure is not None and failure.code == code else "")

    def defer(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call without a result: its error is raised by later calls, and once there is one it does nothing."""
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
        """Let every later call fail. Nobody must wait for a versionstamp that will not come."""
        if self._ended is None:
            self._ended = code
            stamp, self._stamp = self._stamp, None
            if stamp is not None:
                stamp.settle(error=FDBError(code))

    def _record_failure(self, error: FDBError) -> FDBError:
        """A read has failed: the commit will, too."""
        if self._failure is None:
            self._failure = error
        return error

    def _run_reads(self) -> None:
        """Have reads answered that nobody has waited for: their error is the transaction's as well."""
        if self._snapshot is not None and (error := self._snapshot.run_reads()) is not None:
            self._record_failure(error)

    # Options

    def restart_timeout(self) -> None:
        """Let the timeout, counted from the beginning of the transaction, apply."""
        timeout = self.settings.timeout
        self._deadline = self._started + timeout / 1000 if timeout else None

    def disable_read_your_writes(self) -> None:
        """Let reads see the snapshot only."""
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
        """The writes, for whoever looks at them."""
        if self._writes.stamped:
            self._writes.place_stamped()
        return self._writes

    # Versions

    def read_version(self) -> FutureInt64:
        """The version to show for its snapshot, which is taken if there is none yet."""
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
        return ready(FutureInt64, self._version, self._flight)

    def set_read_version(self, version: int) -> None:
        """Read as of a version, if a snapshot taken later still shows it."""
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
                code = TRANSACTION_TOO_OLD  # what it has seen is not of this version
            if code:
                snapshot.close()
                raise FDBError(code)
            self._version = self._version or snapshot.version
            self._snapshot = snapshot
        return self._snapshot

    def _check_version(self, version: int) -> int:
        """The error if a version was set that a snapshot taken now does not have."""
        if self._version is None:
            return 0
        if self._version < version:
            return TRANSACTION_TOO_OLD  # a file has no snapshots of the past
        return FUTURE_VERSION if self._version > version + _FUTURE_VERSIONS else 0

    def _release(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    # Futures that wait for the commit

    def _drop_futures(self, stamp_code: int, watch_code: int | None = None) -> None:
        """Nothing will come of the versionstamp and the watches of this try."""
        watches, stamp = self._watches, self._stamp
        self._watches, self._stamp = [], None
        if stamp is not None:
            stamp.settle(error=FDBError(stamp_code))
        for watch in watches:
            watch.settle(error=FDBError(watch_code or stamp_code))
