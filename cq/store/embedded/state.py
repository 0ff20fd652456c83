"""The state of one try of a transaction, its settings, and the ways in which its calls fail.

A transaction fails in four ways, as with FoundationDB's client:

- an error of a call without a result (`set`, `clear` ...) is *deferred*: every later call raises it;
- an error of a read is raised, and makes the commit fail with the same error;
- a transaction has *ended* when it is cancelled or timed out, or when `on_error` raises: every later call raises this;
- a call after `commit` raises 2017, and ends the transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cq import runtime
from cq.store.api import METADATA_VERSION, TRANSACTION_TIMED_OUT, TRANSACTION_TOO_OLD
from cq.store.embedded.committer import CommitRequest
from cq.store.embedded.engine import Engine
from cq.store.embedded.error import (
    CLIENT_INVALID_OPERATION,
    FUTURE_VERSION,
    INVALID_OPTION_VALUE,
    NO_COMMIT_VERSION,
    READ_VERSION_ALREADY_SET,
    TRANSACTION_CANCELLED,
    TRANSACTION_INVALID_VERSION,
    USED_DURING_COMMIT,
    VERSION_INVALID,
    FDBError,
)
from cq.store.embedded.future import Cancellation, F, Key, failed
from cq.store.embedded.keys import MAX_TRANSACTION_BYTES, SYSTEM_END, USER_END
from cq.store.embedded.snapshots import Snapshot, VersionGlance
from cq.store.embedded.watches import Watch
from cq.store.embedded.writes import ReadSet, Writes

_MAX_INT = 2**31 - 1
_MIN_SIZE_LIMIT = 32


def in_range(value: int, low: int, high: int = _MAX_INT) -> int:
    """The value of an option; raises 2006 if it is out of range."""
    if not low <= value <= high:
        raise FDBError(INVALID_OPTION_VALUE)
    return value


@dataclass(slots=True)
class Settings:
    """The settings, and the methods of `tr.options` that change only them."""

    timeout: int = 0
    retry_limit: int = -1
    max_retry_delay: int = 1000
    size_limit: int = MAX_TRANSACTION_BYTES
    snapshot_ryw: int = 1
    bypass_unreadable: bool = False
    protect_commit: bool = True
    ryw_disabled: bool = False
    next_write_no_conflict: bool = False
    read_system: bool = False
    access_system: bool = False

    def for_try(self, defaults: Settings) -> Settings:
        """The settings of the next try: FoundationDB keeps the first three, and resets the others."""
        return Settings(
            self.timeout,
            self.retry_limit,
            self.max_retry_delay,
            defaults.size_limit,
            defaults.snapshot_ryw,
            defaults.bypass_unreadable,
            defaults.protect_commit,
        )

    def set_timeout(self, milliseconds: int) -> None:
        """Fail with 1031 after this time since the transaction began, retries included; 0: never."""
        self.timeout = in_range(milliseconds, 0)

    def set_retry_limit(self, retries: int) -> None:
        """The maximum number of retries by `on_error`; -1: no limit."""
        self.retry_limit = in_range(retries, -1)

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """The maximum retry delay; by default 1000."""
        self.max_retry_delay = in_range(milliseconds, 0)

    def set_size_limit(self, size: int) -> None:
        """The maximum size of a commit in bytes, by default 10,000,000; a larger commit fails with 2101."""
        self.size_limit = in_range(size, _MIN_SIZE_LIMIT, MAX_TRANSACTION_BYTES)

    def set_snapshot_ryw_enable(self) -> None:
        """Let snapshot reads see own writes (the default). Each call undoes one `set_snapshot_ryw_disable`."""
        self.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        """Hide own writes from snapshot reads."""
        self.snapshot_ryw -= 1

    def set_next_write_no_write_conflict_range(self) -> None:
        """Let the next write add no write conflict."""
        self.next_write_no_conflict = True

    def set_access_system_keys(self) -> None:
        """Allow reads and writes of keys that begin with \\xff."""
        self.read_system = self.access_system = True

    def set_read_system_keys(self) -> None:
        """Allow reads of keys that begin with \\xff."""
        self.read_system = True

    def set_bypass_unreadable(self) -> None:
        """Let `get` read keys with versionstamped values, as written, without the stamp."""
        self.bypass_unreadable = True

    def set_used_during_commit_protection_disable(self) -> None:
        """Let calls after `commit` fail without an effect on the commit."""
        self.protect_commit = False


FIRST_DELAY = 0.01
_DELAY_GROWTH = 2.0
# These errors are not caused by contention, so a longer delay would not help.
_NOT_CROWDED = frozenset({TRANSACTION_TOO_OLD, FUTURE_VERSION})

_FUTURE_VERSIONS = 1_000_000


class TransactionState:
    """The state of one try; the snapshot reads of its transaction share it.

    Args:
        engine: the open file. It stays open as long as a transaction, or a future of it, is in use.
        defaults: the settings of the database.
        former: the state of the try before, for a retry by `on_error`.
    """

    __slots__ = (
        "cancellation",
        "changes_metadata",
        "committed",
        "committing",
        "deadline",
        "defaults",
        "deferred",
        "ended",
        "engine",
        "failure",
        "glance",
        "has_read",
        "max_delay",
        "reads",
        "retries",
        "settings",
        "size",
        "snapshot",
        "stamp",
        "started",
        "version",
        "watches",
        "writes",
    )

    def __init__(self, engine: Engine, defaults: Settings, former: TransactionState | None = None) -> None:
        self.snapshot: Snapshot | None = None
        self.watches: list[Watch] = []
        self.stamp: Key | None = None
        self.cancellation = Cancellation()
        self.engine = engine
        self.defaults = defaults
        if former is None:
            self.started = runtime.monotonic()
            self.settings = defaults.for_try(defaults)
            self.retries = 0
            self.max_delay = FIRST_DELAY  # of the next retry
        else:
            self.started = former.started
            self.settings = former.settings.for_try(defaults)
            self.retries = former.retries
            self.max_delay = former.max_delay
        self.writes = Writes()
        self.reads = ReadSet()
        self.glance: VersionGlance | None = None
        self.changes_metadata = False
        self.version: int | None = None  # set by the caller, or of the snapshot
        self.deferred: int | None = None
        self.ended: int | None = None
        self.failure: FDBError | None = None  # the error of a read or of the commit
        self.committing = False
        self.committed = -1
        self.size = 0
        self.has_read = False
        self.deadline: float | None = None
        if self.settings.timeout:
            self.set_timeout(self.settings.timeout)

    def close(self) -> None:
        """End the try, as its transaction is reset or dropped: futures that are not ready fail with 1025."""
        self.cancellation.error = TRANSACTION_CANCELLED
        self.release()
        self.drop_futures(TRANSACTION_CANCELLED)

    def __del__(self) -> None:
        # May run in any thread at any moment: see `Snapshot.abandon`.
        if not hasattr(self, "cancellation"):  # after ^C in `__init__`
            return
        self.cancellation.error = TRANSACTION_CANCELLED
        if self.snapshot is not None:
            self.snapshot.abandon()
        self.drop_futures(TRANSACTION_CANCELLED)

    # Errors

    def refusal(self) -> FDBError | None:
        """The error of every call with a result at this time; None if the transaction can be used."""
        if self.deferred is not None:
            return FDBError(self.deferred)
        if self.committing:
            return self.used_during_commit()
        return None if self.deadline is None and self.ended is None else self.end_error()

    def end_error(self) -> FDBError | None:
        """The error that ended the transaction, if it has ended."""
        self._time_out_if_due()
        return None if self.ended is None else self.error_of(self.ended)

    def _time_out_if_due(self) -> None:
        if self.ended is None and self.deadline is not None and runtime.monotonic() >= self.deadline:
            self.ended = TRANSACTION_TIMED_OUT
            self.drop_futures(TRANSACTION_TIMED_OUT)  # not the reads, which have arrived before

    def error_of(self, code: int) -> FDBError:
        """The error with this code, and with the detail if a read or the commit failed with it."""
        failure = self.failure
        return FDBError(code, failure.detail if failure is not None and failure.code == code else "")

    def defer(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call without a result, and defer its error to later calls. Skip it if there is a deferred error."""
        if self.deferred is None:
            try:
                call(*arguments)
            except FDBError as error:
                self.deferred = error.code
                if not self.committing:  # the transaction can no longer commit, so they would never be ready
                    self.drop_futures(error.code)

    def used_during_commit(self) -> FDBError:
        """The error of a call after `commit`; ends the transaction, unless an option prevents it."""
        if self.settings.protect_commit:
            self.end(USED_DURING_COMMIT)
        return FDBError(USED_DURING_COMMIT)

    def end(self, code: int) -> None:
        """Make every later call fail, and all futures that are not ready, so that no thread waits for them."""
        if self.ended is None:
            self.ended = self.cancellation.error = code
            self.drop_futures(code)

    def failed_read(self, kind: type[F], error: FDBError) -> F:
        """The future of a read that fails; the commit fails with the first such error."""
        if self.failure is None:
            self.failure = error
        return failed(kind, error)

    def next_delay(self, code: int) -> float:
        """The seconds before the retry after an error: random, with a maximum that doubles with every failure."""
        longest = self.settings.max_retry_delay / 1000
        if code in _NOT_CROWDED:
            return min(FIRST_DELAY, longest)
        delay = min(self.max_delay, longest) * random.random()  # noqa: S311
        self.max_delay = min(self.max_delay * _DELAY_GROWTH, longest)
        return delay

    # Options

    def set_timeout(self, milliseconds: int) -> None:
        """Set and apply the timeout, which counts from the beginning of the transaction."""
        self.settings.set_timeout(milliseconds)
        self._time_out_if_due()  # a longer timeout does not revive the transaction
        self.deadline = self.started + milliseconds / 1000 if milliseconds else None

    def disable_read_your_writes(self) -> None:
        """Make reads ignore own writes."""
        if self.has_read or not self.writes.empty:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self.settings.ryw_disabled = True

    @property
    def read_end(self) -> bytes:
        """The end of the keys that it may read."""
        return SYSTEM_END if self.settings.read_system else USER_END

    @property
    def write_end(self) -> bytes:
        """The end of the keys that it may write."""
        return SYSTEM_END if self.settings.access_system else USER_END

    @property
    def total_size(self) -> int:
        """The bytes that count for the size limit so far."""
        return self.size + self.reads.size

    def own_writes(self) -> Writes:
        """The writes, with versionstamped ones merged, for a read that must see them."""
        if self.writes.stamped:
            self.writes.place_stamped()
        return self.writes

    # Versions

    def set_read_version(self, version: int) -> None:
        """Set the read version. The first read fails if its snapshot is of a later version."""
        if self.version is not None or self.glance is not None:
            raise FDBError(READ_VERSION_ALREADY_SET)
        if version <= 0:
            raise FDBError(VERSION_INVALID)
        self.version = version

    def take_glance(self) -> VersionGlance | None:
        """The glance of this try; None if its caller has set a version whose metadata version is not known."""
        if self.glance is None:
            self.glance = self.engine.glance(self.version)
        return self.glance

    def take_snapshot(self) -> Snapshot:
        """The snapshot of this try, taken at the first call."""
        if self.snapshot is None:
            snapshot = self.engine.snapshot()
            code = self._check_version(snapshot.version)
            if self.glance is not None and snapshot.get(METADATA_VERSION) != self.glance.metadata:
                code = TRANSACTION_TOO_OLD  # the glance is of another version
            if code:
                snapshot.close()
                raise FDBError(code)
            self.version = self.version or snapshot.version
            self.snapshot = snapshot
        return self.snapshot

    def _check_version(self, version: int) -> int:
        """The error code if the version set by the caller cannot be read now; otherwise 0."""
        if self.version is None:
            return 0
        if self.version < version:
            return TRANSACTION_TOO_OLD  # only the latest version can be read
        return FUTURE_VERSION if self.version > version + _FUTURE_VERSIONS else 0

    @property
    def seen(self) -> Snapshot | VersionGlance | None:
        """What its reads have seen, which has a version and may be too old."""
        return self.snapshot or self.glance

    def release(self) -> None:
        """Close the snapshot."""
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None

    # The commit, and futures that depend on it

    def finish(self, request: CommitRequest | None, error: FDBError | None) -> None:
        """Handle the result of the commit, None for one without writes. Runs in the thread that made the commit."""
        if error is not None:
            self.failure = error
            self.drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return
        self.max_delay = FIRST_DELAY
        if request is not None:
            self.committed = request.version
        # Each is dropped after it is done: an interrupted thread begins again.
        if self.stamp is not None:
            if request is None:
                self.stamp.settle(error=FDBError(NO_COMMIT_VERSION))
            else:
                self.stamp.settle(request.versionstamp)
            self.stamp = None
        if self.watches:
            self.engine.watches.add(watch for watch in self.watches if not watch.is_ready())
            self.watches = []

    def drop_futures(self, stamp_code: int, watch_code: int | None = None) -> None:
        """Fail the versionstamp and the watches of this try."""
        watches, stamp = self.watches, self.stamp
        self.watches, self.stamp = [], None
        if stamp is not None:
            stamp.settle(error=FDBError(stamp_code))
        for watch in watches:
            watch.settle(error=FDBError(watch_code or stamp_code))
