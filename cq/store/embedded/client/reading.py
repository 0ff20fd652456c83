"""The reads of a transaction, with their checks and read conflicts."""

from __future__ import annotations

from collections.abc import Callable

from cq.store.embedded.binding.error import (
    EXACT_MODE_WITHOUT_LIMITS,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    RANGE_LIMITS_INVALID,
    FDBError,
)
from cq.store.embedded.binding.future import (
    F,
    FutureInt64,
    FutureKeyArray,
    FutureRows,
    Key,
    Value,
    failed,
    ready,
)
from cq.store.embedded.binding.keys import (
    MAX_KEY_BYTES,
    METADATA_VERSION,
    USER_END,
    Range,
    Row,
    max_key_bytes,
)
from cq.store.embedded.client.range import EXACT, piece_bytes
from cq.store.embedded.client.read_your_writes import ReadYourWrites
from cq.store.embedded.client.state import TransactionState
from cq.store.embedded.snapshots.snapshots import Snapshot, VersionGlance
from cq.store.embedded.writes.read_set import (
    OffsetSelector,
    RangeRead,
    RangeRequest,
    conflict_range,
    conflict_range_without_ryw,
)
from cq.store.embedded.writes.writes import Writes

_UNLIMITED_ROWS = 1 << 40


class TransactionReads(TransactionState):
    """The reads of a transaction. All errors except those of arguments make the commit fail as well."""

    __slots__ = ()

    def fast_get(self, key: bytes) -> Value | None:
        """A fast path of `read_value`: reads only an open snapshot. None if the read needs the other path."""
        snapshot = self._snapshot
        if (
            snapshot is None
            or key >= USER_END
            or len(key) > MAX_KEY_BYTES
            or self._writes
            or self._committing
            or self._deferred is not None
            or self._ended is not None
            or self._deadline is not None
        ):
            return None
        self._has_read = True
        try:
            return ready(Value, snapshot.get(key), self._cancellation)
        except FDBError:
            return None  # `read_value` then returns the error

    def read_value(self, key: bytes, snapshot: bool) -> Value:
        """The value of a key."""
        try:
            self.check()
            if key >= USER_END and key != METADATA_VERSION and key >= self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        except FDBError as error:
            return failed(Value, error)
        if len(key) > MAX_KEY_BYTES and len(key) > max_key_bytes(key):
            return ready(Value, None)
        try:
            return self._value(key, snapshot)
        except FDBError as error:
            return failed(Value, self._record_failure(error))

    def _value(self, key: bytes, snapshot: bool) -> Value:
        writes = None
        if key == METADATA_VERSION and self._may_glance():
            value = ready(Value, self._take_glance().metadata, self._cancellation)
        else:
            view, writes = self._view(snapshot)
            bypass = self.settings.bypass_unreadable
            value = view.get(key, self._cancellation, bypass_unreadable=bypass)
        if not snapshot:
            self._reads.add_key(key, writes)
        return value

    def _may_glance(self) -> bool:
        """Whether the metadata version can be read by a glance: there is no snapshot, and no own write covers it.

        A retry takes a snapshot: the first try may have failed because the metadata version changed between a glance
        and a later read. If it changes often, every try with a glance could fail.
        """
        return (
            self._snapshot is None
            and not self._retries
            and self._version is None
            and not self._changes_metadata
            and not self.settings.read_system
        )

    def _take_glance(self) -> VersionGlance:
        self._has_read = True
        if self._glance is None:
            self._glance = self.engine.glance()
        return self._glance

    def read_key(self, selector: OffsetSelector, snapshot: bool) -> Key:
        """The key that a selector resolves to."""
        try:
            self.check()
            if selector.key > self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
        except FDBError as error:
            return failed(Key, error)
        try:
            view, writes = self._view(snapshot)
            found = view.resolve(*selector)
        except FDBError as error:
            return failed(Key, self._record_failure(error))
        if not snapshot:
            self._reads.add_selector(*selector, found, writes)
        return ready(Key, found, self._cancellation)

    def read_range(self, request: RangeRequest, snapshot: bool) -> FutureRows:
        """One piece of a range: rows, and whether more may follow."""
        begin, end, limit, reverse, mode, iteration = request
        try:
            self.check()
            if begin.key > self._read_end or end.key > self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
            if limit < 0:
                raise FDBError(RANGE_LIMITS_INVALID)
            if mode == EXACT and not limit:
                raise FDBError(EXACT_MODE_WITHOUT_LIMITS)
        except FDBError as error:
            return failed(FutureRows, error)
        if begin.offset >= end.offset and begin.key >= end.key:
            return ready(FutureRows, ([], False), self._cancellation)
        try:
            view, writes = self._view(snapshot)
            bounds = self._bound(view, begin), self._bound(view, end)
            found = view.rows(*bounds, limit or _UNLIMITED_ROWS, piece_bytes(mode, iteration), reverse)
        except FDBError as error:
            return failed(FutureRows, self._record_failure(error))
        if not snapshot:
            self._add_range_read(request, bounds, *found, writes)
        return ready(FutureRows, found, self._cancellation)

    def _bound(self, view: ReadYourWrites, selector: OffsetSelector) -> bytes:
        return selector.key if selector.offset == 1 else view.resolve(*selector)

    def _add_range_read(
        self, request: RangeRequest, bounds: Range, rows: list[Row], more: bool, writes: Writes | None
    ) -> None:
        begin, end, _, reverse, *_ = request
        space_end, ryw_disabled = self._read_end, self.settings.ryw_disabled
        selectors = ((bounds[0], begin.offset), (bounds[1], end.offset))
        to_begin = any(key == b"" and offset < 1 for key, offset in selectors)
        through_end = any(key == space_end and offset > 1 for key, offset in selectors)
        if more and not ryw_disabled:
            to_begin, through_end = to_begin and not reverse, through_end and reverse
        read = RangeRead(request, rows, more, to_begin, through_end, space_end)
        seen = conflict_range_without_ryw(read) if ryw_disabled else conflict_range(read)
        self._reads.add_range(*seen, writes)

    def _view(self, snapshot: bool) -> tuple[ReadYourWrites, Writes | None]:
        """The view for a read, and the own writes visible to it."""
        self._has_read = True
        settings = self.settings
        visible = not (settings.ryw_disabled or (snapshot and settings.snapshot_ryw <= 0))
        writes = self._own_writes() if visible else None
        return ReadYourWrites(self._take_snapshot, writes, self._read_end), writes

    def range_size(self, begin: bytes, end: bytes) -> FutureInt64:
        """The stored bytes of a range."""
        return self._measure(FutureInt64, begin, end, lambda snapshot: snapshot.range_size(begin, end))

    def split_points(self, begin: bytes, end: bytes, chunk: int, limit: int) -> FutureKeyArray:
        """Keys that cut a range into parts of about `chunk` bytes."""
        return self._measure(
            FutureKeyArray, begin, end, lambda snapshot: snapshot.split_points(begin, end, chunk, limit)
        )

    def _measure(self, kind: type[F], begin: bytes, end: bytes, measure: Callable[[Snapshot], object]) -> F:
        """Measure stored rows in a new snapshot; this is no read of the transaction and adds no conflict."""
        try:
            self.check()
            if begin > end:
                raise FDBError(INVERTED_RANGE)
            if begin > self._read_end or end > self._read_end:
                raise FDBError(KEY_OUTSIDE_LEGAL_RANGE)
            snapshot = self.engine.snapshot()
            try:
                return ready(kind, measure(snapshot), self._cancellation)
            finally:
                snapshot.close()
        except FDBError as error:
            return failed(kind, error)
