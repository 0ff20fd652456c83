"""The inside of a transaction: its state, and FoundationDB's rules of when each call fails.

A transaction fails in four ways, which are kept apart as FoundationDB's client does:

- a call without a result (`set`, `clear` ...) that is wrong has its error *deferred*: every later call raises it;
- an error of a read, apart from being raised, makes the commit fail with the same error;
- a transaction that is cancelled, timed out, or given up by `on_error` has *ended*: every later call raises that;
- a call after `commit` raises 2017, and ends the transaction.

`reset`, and `on_error` when it says "retry", make it as new.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from . import atomic
from .backoff import BackOff, Backoffs
from .committer import Request
from .error import (
    CLIENT_INVALID_OPERATION,
    EXACT_MODE_WITHOUT_LIMITS,
    FUTURE_VERSION,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    NO_COMMIT_VERSION,
    RANGE_LIMITS_INVALID,
    READ_VERSION_ALREADY_SET,
    RETRYABLE,
    TOO_MANY_WATCHES,
    TRANSACTION_CANCELLED,
    TRANSACTION_INVALID_VERSION,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    USED_DURING_COMMIT,
    VALUE_TOO_LARGE,
    VERSION_INVALID,
    WATCHES_DISABLED,
    FDBError,
)
from .future import F, FutureInt64, FutureKeyArray, FutureVoid, Key, Value, failed, ready
from .keys import (
    MAX_VALUE_BYTES,
    METADATA_VERSION,
    STAMP_BYTES,
    SYSTEM_END,
    USER_END,
    after,
    clip,
    max_key_bytes,
)
from .options import Settings
from .ranges import EXACT
from .reads import View
from .readset import RANGE_BYTES, Place, RangeRead, ReadSet, seen_range, seen_range_plain
from .sizes import range_size, split_points
from .snapshots import Snapshot
from .watches import Watch
from .writes import Changes, Row, Writes

if TYPE_CHECKING:
    from .database import Database

MUTATION_BYTES = 44
"""What a mutation costs beside its key and value, in FoundationDB's sizes."""

_UNLIMITED_ROWS = 1 << 40
_FUTURE_VERSIONS = 1_000_000
_METADATA_PARAM = bytes(14)


class Core:
    """One transaction, try after try."""

    __slots__ = (
        "_backoffs",
        "_committed",
        "_committing",
        "_deadline",
        "_deferred",
        "_ended",
        "_read_error",
        "_reads",
        "_request",
        "_retries",
        "_size",
        "_snapshot",
        "_stamp",
        "_touched",
        "_version",
        "_watches",
        "_writes",
        "born",
        "database",
        "settings",
    )

    def __init__(self, database: Database) -> None:
        self.database = database
        self._snapshot: Snapshot | None = None
        self._watches: list[Watch] = []
        self._stamp: Key | None = None
        self._begin()
        self._begin_try()

    def _begin(self) -> None:
        self.born = time.monotonic()
        self.settings = Settings(self.database)
        self._backoffs = Backoffs()
        self._retries = 0

    def _begin_try(self) -> None:
        self._writes = Writes()
        self._reads = ReadSet()
        self._version: int | None = None  # as set, or as shown to the owner
        self._deferred: int | None = None
        self._ended: int | None = None
        self._read_error: int | None = None
        self._committing = False
        self._request: Request | None = None
        self._committed = -1
        self._size = 0
        self._touched = False
        self._deadline: float | None = None
        self.restart_timeout()

    def __del__(self) -> None:
        # May run anywhere: see `Snapshot.abandon`.
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
        self.check_ended()

    def check_ended(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end(TRANSACTION_TIMED_OUT)
        if self._ended is not None:
            raise FDBError(self._ended)

    def defer(self, call: Callable[[], None]) -> None:
        """Make a call without a result: its error is raised by later calls, and once there is one it does nothing."""
        if self._deferred is None:
            try:
                call()
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

    def _poison(self, error: FDBError) -> FDBError:
        """A read has failed: the commit will, too."""
        if self._read_error is None:
            self._read_error = error.code
        return error

    # Options

    def restart_timeout(self) -> None:
        """Let the timeout, counted from the beginning of the transaction, apply."""
        timeout = self.settings.timeout
        self._deadline = self.born + timeout / 1000 if timeout else None

    def disable_read_your_writes(self) -> None:
        if self._touched or not self._writes.untouched:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self.settings.ryw_disabled = True

    @property
    def _read_end(self) -> bytes:
        return SYSTEM_END if self.settings.read_system else USER_END

    @property
    def _write_end(self) -> bytes:
        return SYSTEM_END if self.settings.access_system else USER_END

    # Versions

    def read_version(self) -> FutureInt64:
        try:
            if self._deferred is not None:
                raise FDBError(self._deferred)
            self.check_ended()
            if self._version is None:
                self._take_snapshot()
                if self._committing:
                    self._release()
        except FDBError as error:
            return failed(FutureInt64, error)
        return ready(FutureInt64, self._version)

    def set_read_version(self, version: int) -> None:
        if self._version is not None:
            raise FDBError(READ_VERSION_ALREADY_SET)
        if version <= 0:
            raise FDBError(VERSION_INVALID)
        self._version = version

    def _take_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            snapshot = self.database.snapshot()
            shown = self.database.show_version(snapshot.version)
            code = self._check_version(snapshot.version, shown)
            if code:
                snapshot.close()
                raise FDBError(code)
            self._version = self._version or shown
            self._snapshot = snapshot
        return self._snapshot

    def _check_version(self, version: int, shown: int) -> int:
        """The error if a version was set that a snapshot taken now does not have."""
        if self._version is None:
            return 0
        if self._version < version:
            return TRANSACTION_TOO_OLD  # a file has no snapshots of the past
        return FUTURE_VERSION if self._version > shown + _FUTURE_VERSIONS else 0

    def _release(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    # Reading

    def read_value(self, key: bytes, snapshot: bool) -> Value:
        try:
            self.check()
            if key >= self._read_end and key != METADATA_VERSION:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        except FDBError as error:
            return failed(Value, error)
        if len(key) > max_key_bytes(key):
            return ready(Value, None)
        try:
            return ready(Value, self._value(key, snapshot))
        except FDBError as error:
            return failed(Value, self._poison(error))

    def _value(self, key: bytes, snapshot: bool) -> bytes | None:
        view, writes = self._view(snapshot)
        value = view.get(key, bypass_unreadable=self.settings.bypass_unreadable)
        if not snapshot:
            self._reads.add_key(key, writes)
        return value

    def read_key(self, place: Place, snapshot: bool) -> Key:
        try:
            self.check()
            if place.key > self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        except FDBError as error:
            return failed(Key, error)
        try:
            view, writes = self._view(snapshot)
            found = view.resolve(*place)
        except FDBError as error:
            return failed(Key, self._poison(error))
        if not snapshot:
            self._reads.add_selector(*place, found, writes)
        return ready(Key, found)

    def read_range(
        self,
        begin: Place,
        end: Place,
        *,
        limit: int,
        mode: int,
        max_bytes: int,
        reverse: bool,
        snapshot: bool,
    ) -> tuple[list[Row], bool]:
        """One piece of a range: rows, and whether there may be more."""
        self.check()
        if begin.key > self._read_end or end.key > self._read_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if limit < 0:
            raise FDBError(RANGE_LIMITS_INVALID)
        if mode == EXACT and not limit:
            raise FDBError(EXACT_MODE_WITHOUT_LIMITS)
        if begin.offset >= end.offset and begin.key >= end.key:
            return [], False
        try:
            view, writes = self._view(snapshot)
            low, high = self._bound(view, begin), self._bound(view, end)
            rows, more = view.rows(low, high, limit or _UNLIMITED_ROWS, max_bytes, reverse)
        except FDBError as error:
            raise self._poison(error) from None
        if not snapshot:
            self._add_range_read(begin, end, low, high, rows, more, reverse, writes)
        return rows, more

    def _bound(self, view: View, place: Place) -> bytes:
        return place.key if place.offset == 1 else view.resolve(*place)

    def _add_range_read(
        self,
        begin: Place,
        end: Place,
        low: bytes,
        high: bytes,
        rows: list[Row],
        more: bool,
        reverse: bool,
        writes: Writes | None,
    ) -> None:
        space_end = self._read_end
        to_begin = (low == b"" and begin.offset < 1) or (high == b"" and end.offset < 1)
        through_end = (low == space_end and begin.offset > 1) or (high == space_end and end.offset > 1)
        if more and not self.settings.ryw_disabled:
            to_begin, through_end = to_begin and not reverse, through_end and reverse
        read = RangeRead(begin, end, rows, more, reverse, to_begin, through_end, space_end)
        seen = seen_range_plain(read) if self.settings.ryw_disabled else seen_range(read)
        self._reads.add_range(*seen, writes)

    def _view(self, snapshot: bool) -> tuple[View, Writes | None]:
        """What a read sees, and the writes among it."""
        self._touched = True
        settings = self.settings
        visible = not (settings.ryw_disabled or (snapshot and settings.snapshot_ryw <= 0))
        writes = self._writes if visible else None
        return View(self._take_snapshot, writes, self._read_end), writes

    def range_size(self, begin: bytes, end: bytes) -> FutureInt64:
        return self._measure(FutureInt64, begin, end, lambda snapshot: range_size(snapshot, begin, end))

    def split_points(self, begin: bytes, end: bytes, chunk: int, limit: int) -> FutureKeyArray:
        points = partial(split_points, begin=begin, end=end, chunk=chunk, limit=limit)
        return self._measure(FutureKeyArray, begin, end, points)

    def _measure(self, kind: type[F], begin: bytes, end: bytes, measure: Callable[[Snapshot], object]) -> F:
        """Look at the stored rows only; no read of the transaction."""
        try:
            self.check()
            if begin > end:
                raise FDBError(INVERTED_RANGE)
            if begin > self._read_end or end > self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
            snapshot = self.database.snapshot()
            try:
                return ready(kind, measure(snapshot))
            finally:
                snapshot.close()
        except FDBError as error:
            return failed(kind, error)

    # Writing

    def set(self, key: bytes, value: bytes) -> None:
        if key == METADATA_VERSION:
            raise FDBError(CLIENT_INVALID_OPERATION)
        conflict = self._begin_write(key)
        self._count_mutation(len(key) + len(value), 2 * len(key) + 1, conflict)
        _check_lengths(key, value)
        if conflict:
            self._writes.set(key, value)
        else:
            self._writes.mutate(key, atomic.SET, value, False)
        if self._watches:
            self._trigger(key, after(key), value)

    def clear(self, key: bytes) -> None:
        conflict = self._begin_write(key)
        if len(key) > max_key_bytes(key):
            return
        self._count_mutation(2 * len(key) + 1, 2 * len(key) + 1, conflict)
        self._writes.clear(key, conflict)
        if self._watches:
            self._trigger(key, after(key), None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise FDBError(INVERTED_RANGE)
        conflict = self._begin_write(None)
        if begin > self._write_end or end > self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        self._count_mutation(len(begin) + len(end), len(begin) + len(end), conflict)
        begin, end = clip(begin), clip(end)
        if begin == end:
            return
        self._writes.clear_range(begin, end, conflict)
        if self._watches:
            self._trigger(begin, end, None)

    def mutate(self, operation: int, key: bytes, operand: bytes) -> None:
        """An atomic operation."""
        if key == METADATA_VERSION:
            conflict = self._begin_write(None)
            if operation != atomic.SET_VERSIONSTAMPED_VALUE or operand != _METADATA_PARAM:
                raise FDBError(CLIENT_INVALID_OPERATION)
        else:
            conflict = self._begin_write(key)
        _check_lengths(key, operand)
        if operation == atomic.SET_VERSIONSTAMPED_KEY:
            self._set_versionstamped_key(key, operand)
            return
        if operation == atomic.SET_VERSIONSTAMPED_VALUE and atomic.stamp_offset(operand) < 0:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self._count_mutation(len(key) + len(operand), 2 * len(key) + 1, conflict)
        self._writes.mutate(key, operation, operand, conflict)
        if self._watches:
            self._trigger_unknown(key)

    def _set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        start = atomic.stamp_offset(key)
        if start < 0:
            raise FDBError(CLIENT_INVALID_OPERATION)
        self._count_mutation(len(key) + len(value), 0, False)
        # The stamp will be later than the read version, if that is known already.
        least = (self._version or 0).to_bytes(8, "big") + b"\0\0"
        first = atomic.stamp(key, least)
        last = after(atomic.stamp(key, b"\xff" * STAMP_BYTES))
        waiting = key[:start] + least + key[start + STAMP_BYTES :]
        self._writes.set_versionstamped_key((first, min(last, self._read_end)), waiting, value)

    def add_read_conflict(self, begin: bytes, end: bytes) -> None:
        if self._committing:
            self._protect_commit()
        if max(begin, end) > self._read_end and (begin, end) != (METADATA_VERSION, after(METADATA_VERSION)):
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        self._reads.add_range(clip(begin), clip(end), None if self.settings.ryw_disabled else self._writes)

    def add_write_conflict(self, begin: bytes, end: bytes) -> None:
        if self._committing:
            self._protect_commit()
        if max(begin, end) > self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        begin, end = clip(begin), clip(end)
        if begin < end:
            self._size += len(begin) + len(end) + RANGE_BYTES
            self._writes.add_conflict_range(begin, end)

    def _begin_write(self, key: bytes | None) -> bool:
        """Whether the write conflicts with reads of others; uses up the option that says no."""
        settings = self.settings
        conflict = not settings.next_write_no_conflict
        settings.next_write_no_conflict = False
        if self._committing:
            self._protect_commit()
        if key is not None and key >= self._write_end:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        return conflict

    def _count_mutation(self, size: int, conflict_size: int, conflict: bool) -> None:
        self._size += size + MUTATION_BYTES + (conflict_size + RANGE_BYTES if conflict else 0)

    # Watching

    def watch(self, key: bytes) -> FutureVoid:
        try:
            self.check()
            self._check_watch(key)
            value = self._value(key, snapshot=False)
        except FDBError as error:
            return failed(FutureVoid, error)
        watch = Watch(self.database.watches, key, value)
        self._watches.append(watch)
        return watch

    def _check_watch(self, key: bytes) -> None:
        if self.settings.ryw_disabled:
            raise FDBError(WATCHES_DISABLED)
        if key >= self._read_end and key != METADATA_VERSION:
            raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        if len(key) > max_key_bytes(key):
            raise FDBError(KEY_TOO_LARGE)
        if self.database.watches.full():
            raise FDBError(TOO_MANY_WATCHES)

    def _trigger(self, begin: bytes, end: bytes, value: bytes | None) -> None:
        """A write of this transaction fires its own watches of the key at once."""
        for watch in self._watches:
            if begin <= watch.key < end:
                watch.compare(value)

    def _trigger_unknown(self, key: bytes) -> None:
        for watch in self._watches:
            if watch.key == key:
                watch.settle()

    # Committing

    def commit(self) -> FutureVoid:
        try:
            self.check()
        except FDBError as error:
            return failed(FutureVoid, error)
        self._committing = True
        changes = self._writes.changes()
        try:
            self._check_commit(changes)
        except FDBError as error:
            self._release()
            self._drop_futures(TRANSACTION_INVALID_VERSION, error.code)
            return failed(FutureVoid, error)
        if changes.empty:
            self._release()
            self._finish(None, 0)
            return ready(FutureVoid, None)
        request = self._request = self._make_request(changes)
        self._release()
        self.database.check_usable()
        self.database.committer.submit(request)
        return request

    def _check_commit(self, changes: Changes) -> None:
        if self._read_error is not None:
            raise FDBError(self._read_error)
        if changes.empty:
            return
        limit = self.settings.size_limit
        if self._total_size > limit and self._exact_size(changes) > limit:
            raise FDBError(TRANSACTION_TOO_LARGE)
        if self._reads and self._snapshot is not None and self._snapshot.expired:
            raise FDBError(TRANSACTION_TOO_OLD)

    def _make_request(self, changes: Changes) -> Request:
        request = Request(changes, self._reads, self._total_size, self._finish)
        # What a snapshot really is counts, not what is shown of it: see `Database.show_version`.
        request.read_version = self._version if self._snapshot is None else self._snapshot.version
        return request

    def _finish(self, request: Request | None, code: int) -> None:
        """The commit has its result. Runs in the thread that made it."""
        watches, stamp = self._watches, self._stamp
        if request is not self._request:
            return  # the owner has reset the transaction meanwhile, and so given up all that hangs on it
        if code:
            self._drop_futures(TRANSACTION_INVALID_VERSION, code)
            return
        self._watches, self._stamp = [], None
        self._backoffs = Backoffs()
        if request is not None:
            self._committed = request.version
        if stamp is not None and request is None:
            stamp.settle(error=FDBError(NO_COMMIT_VERSION))
        elif stamp is not None and request is not None:
            stamp.settle(request.versionstamp)
        if watches:
            self.database.watches.add(watch for watch in watches if not watch.is_ready())

    def _drop_futures(self, stamp_code: int, watch_code: int | None = None) -> None:
        """Nothing will come of the versionstamp and the watches of this try."""
        watches, stamp = self._watches, self._stamp
        self._watches, self._stamp = [], None
        if stamp is not None:
            stamp.settle(error=FDBError(stamp_code))
        for watch in watches:
            watch.settle(error=FDBError(watch_code or stamp_code))

    def committed_version(self) -> int:
        return self._committed

    def versionstamp(self) -> Key:
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
        if self._deferred is not None:
            return failed(FutureInt64, FDBError(self._deferred))
        return ready(FutureInt64, self._total_size)

    @property
    def _total_size(self) -> int:
        return self._size + self._reads.size

    def _exact_size(self, changes: Changes) -> int:
        """The size without what later writes of the same transaction have replaced."""
        if self.settings.ryw_disabled:
            return self._total_size
        mutations = sum(
            len(key) + len(value or key) + MUTATION_BYTES for _, key, value in changes.mutations()
        )
        keys = sum(2 * len(key) + 1 + RANGE_BYTES for key in changes.write_keys | self._reads.keys)
        ranges = set(changes.write_ranges) | set(self._reads.ranges)
        return mutations + keys + sum(len(begin) + len(end) + RANGE_BYTES for begin, end in ranges)

    # Beginning again

    def on_error(self, code: int) -> FutureVoid:
        try:
            self.check_ended()
        except FDBError as error:
            return failed(FutureVoid, error)
        exhausted = 0 <= self.settings.retry_limit <= self._retries
        self._retries += 1
        if exhausted or code not in RETRYABLE:
            self._end(TRANSACTION_CANCELLED)
            return failed(FutureVoid, FDBError(code or CLIENT_INVALID_OPERATION))
        delay = self._backoffs.next(code, self.settings.max_retry_delay / 1000)
        deadline = self._deadline
        self.settings.begin_try(self.database)
        self._restart()
        return BackOff(delay, deadline)

    def reset(self) -> None:
        self._begin()
        self._restart()

    def _restart(self) -> None:
        self._release()
        self._drop_futures(TRANSACTION_CANCELLED)
        self._begin_try()

    def cancel(self) -> None:
        self._end(TRANSACTION_CANCELLED)


def _check_lengths(key: bytes, value: bytes) -> None:
    if len(key) > max_key_bytes(key):
        raise FDBError(KEY_TOO_LARGE)
    if len(value) > MAX_VALUE_BYTES:
        raise FDBError(VALUE_TOO_LARGE)
