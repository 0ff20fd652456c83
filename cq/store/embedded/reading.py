"""The reads of a transaction and of its snapshot, with their checks and read conflicts.

A selector depends on the keys between its start and its result. A range read with a limit depends on the range up to
its last row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple, cast

from cq.store import api
from cq.store.api import ACCESSED_UNREADABLE, METADATA_VERSION, WANT_ALL
from cq.store.embedded.error import (
    EXACT_MODE_WITHOUT_LIMITS,
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    RANGE_LIMITS_INVALID,
    FDBError,
)
from cq.store.embedded.future import (
    Cancellation,
    F,
    Future,
    FutureInt64,
    FutureKeyArray,
    Key,
    Value,
    failed,
    ready,
)
from cq.store.embedded.keys import (
    MAX_KEY_BYTES,
    USER_END,
    KeySelector,
    KeyValue,
    Range,
    Row,
    after,
    key_bytes,
    strinc,
)
from cq.store.embedded.snapshots import Snapshot
from cq.store.embedded.state import TransactionState
from cq.store.embedded.writes import SeenRow, Writes

_PIECE_BYTES = 120_000
_PIECE_ROWS = 1_000


class ReadYourWrites:
    """A snapshot, taken when first needed, with the writes of the transaction on top of it.

    A read walks the key space from one end of its range until it has all results. It fails with 1036 if it reaches an
    unreadable key, where a versionstamped key may be written. If it has all results before, it succeeds.
    """

    __slots__ = ("_end", "_snapshot", "writes")

    def __init__(self, snapshot: Callable[[], Snapshot], writes: Writes | None, end: bytes) -> None:
        self._snapshot = snapshot
        self.writes = writes or None  # None for an empty `Writes`: the fast paths below
        self._end = end

    def get(self, key: bytes, cancellation: Cancellation, bypass_unreadable: bool) -> Value:
        """The value of a key; `cancellation` ends stored values, as own writes are known without a read."""
        writes = self.writes
        if writes is None:
            return ready(Value, self._snapshot().get(key), cancellation)
        if key in writes.values:
            return ready(Value, writes.values[key])
        if writes.unreadable(key) and not bypass_unreadable:
            raise FDBError(ACCESSED_UNREADABLE)
        pending = writes.pending.get(key)
        if pending is None:
            if writes.cleared(key):
                return ready(Value, None)
            return ready(Value, self._snapshot().get(key), cancellation)
        return ready(Value, pending.value(self._snapshot().get(key) if pending.dependent else None))

    def resolve(self, key: bytes, offset: int) -> bytes:
        """The key that a selector resolves to; offset 0 is the last key before `key`.

        Before the first key, the result is b""; after the last key, the end of the key space.
        """
        if offset > 0:
            found = self._nth(key, self._end, offset - 1, reverse=False)
            return self._end if found is None else found
        found = self._nth(b"", key, -offset, reverse=True)
        return b"" if found is None else found

    def rows(
        self, begin: bytes, end: bytes, limit: int, max_bytes: int, reverse: bool
    ) -> tuple[list[Row], bool]:
        """At most `limit` rows, or about `max_bytes`, from one end of [begin, end); and whether more may follow."""
        if begin >= end:
            return [], False
        writes = self.writes
        if writes is None:
            found, is_all = self._snapshot().rows(begin, end, limit, max_bytes, reverse)
            return found, not is_all
        rows: list[Row] = []
        size = 0
        for seen in self._pieces(writes, begin, end, limit, max_bytes, reverse):
            piece = [(key, value) for key, value in seen if value is not None]
            rows += piece
            if len(rows) >= limit:
                return rows[:limit], True
            size += sum(len(key) + len(value) for key, value in piece)
            if size >= max_bytes:
                return rows, True
        return rows, False

    def _nth(self, begin: bytes, end: bytes, index: int, *, reverse: bool) -> bytes | None:
        if begin >= end:
            return None
        writes = self.writes
        if writes is None:
            rows, _ = self._snapshot().rows(begin, end, index + 1, _UNLIMITED, reverse)
            return rows[index][0] if len(rows) > index else None
        for seen in self._pieces(writes, begin, end, index + 1, _PIECE_BYTES, reverse):
            for key, value in seen[index:]:
                if value is not None:
                    return key
            index = max(index - len(seen), 0)
        return None

    def _pieces(
        self, writes: Writes, begin: bytes, end: bytes, limit: int, max_bytes: int, reverse: bool
    ) -> Iterator[Sequence[SeenRow]]:
        """The rows of [begin, end) in pieces, in the order of the read; raises 1036 at the first unreadable key."""
        unreadable = writes.unreadable_parts(begin, end)
        if unreadable and reverse:
            begin = unreadable[-1][1]
        elif unreadable:
            end = unreadable[0][0]
        parts = writes.live(begin, end)
        for start, stop, live in reversed(parts) if reverse else parts:
            for rows, first, last in self._part(
                start, stop, live, min(limit, _PIECE_ROWS), max_bytes, reverse
            ):
                yield writes.overlay(rows, first, last, reverse)
        if unreadable:
            raise FDBError(ACCESSED_UNREADABLE)

    def _part(
        self, begin: bytes, end: bytes, live: bool, limit: int, max_bytes: int, reverse: bool
    ) -> Iterator[tuple[list[Row], bytes, bytes]]:
        """The stored rows of [begin, end) in pieces, each with its range."""
        is_done = False
        while begin < end and not is_done:
            rows, is_done = (
                self._snapshot().rows(begin, end, limit, max_bytes, reverse) if live else ([], True)
            )
            # A piece reaches to its last row, or to the end of the part if it has all rows.
            if is_done:
                yield rows, begin, end
            elif reverse:
                yield rows, rows[-1][0], end
                end = rows[-1][0]
            else:
                yield rows, begin, after(rows[-1][0])
                begin = after(rows[-1][0])


ITERATOR = -1
EXACT = 0
SMALL = 1
MEDIUM = 2
LARGE = 3
SERIAL = 4

_MODE_BYTES = {WANT_ALL: 80_000, SMALL: 256, MEDIUM: 1_000, LARGE: 4_096, SERIAL: 80_000}
_GROWTH = 1.5
_LARGEST = 120_000
_UNLIMITED = 1 << 40

# Converts a row without executing Python code.
_row = cast("Callable[[Row], KeyValue]", partial(tuple.__new__, KeyValue))


def piece_bytes(mode: int, iteration: int) -> int:
    """The approximate bytes of one piece. An iterator may be left early, so its first piece is small."""
    if mode == EXACT:
        return _UNLIMITED
    if mode == ITERATOR:
        return min(int(_MODE_BYTES[LARGE] * _GROWTH ** (iteration - 1)), _LARGEST)
    return _MODE_BYTES[mode]


RangePiece = tuple[list[Row], bool]
"""The rows of one piece of a range, and whether more may follow."""


class OffsetSelector(NamedTuple):
    """A key selector without `or_equal`: offset 1 is the first key at or after `key`, 0 the last key before it."""

    key: bytes
    offset: int


class RangeRequest(NamedTuple):
    """A request for one piece of a range."""

    begin: OffsetSelector
    end: OffsetSelector
    limit: int
    """The maximum number of rows; 0: all."""
    reverse: bool
    mode: int
    """One of the binding's streaming modes."""
    iteration: int = 1


class FDBRange:
    """Iterates over `KeyValue`s. All errors, including those of the first piece, are raised by the iteration."""

    __slots__ = ("_first", "_read", "_request")

    def __init__(self, read: Callable[[RangeRequest], Future[RangePiece]], request: RangeRequest) -> None:
        self._read = read
        self._request = request
        self._first = read(request)

    def to_list(self) -> list[KeyValue]:
        """All rows."""
        mode = self._request.mode
        if mode == ITERATOR:
            mode = EXACT if self._request.limit > 0 else WANT_ALL
        return list(self._iterate(mode))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._request.mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        begin, end, limit, reverse, _, iteration = self._request
        rows, more = self._first.get()
        while rows:
            yield from map(_row, rows)
            if not more or limit == len(rows):
                return
            if reverse:
                end = OffsetSelector(rows[-1][0], 1)
            else:
                begin = OffsetSelector(after(rows[-1][0]), 1)
            limit, iteration = limit and limit - len(rows), iteration + 1
            rows, more = self._read(RangeRequest(begin, end, limit, reverse, mode, iteration)).get()


class ReadOperations:
    """Reads by a prefix and by `[]`."""

    __slots__ = ()

    get: Any
    get_range: Any

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> Any:
        """The rows whose keys begin with `prefix`."""
        prefix = key_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)


class TransactionRead(ReadOperations):
    """Reads. The reads of a transaction add read conflicts, those of `tr.snapshot` do not.

    All errors except those of arguments make the commit fail as well.
    """

    # With a dictionary, as in the binding: FoundationDB's directory layer keeps a state of its own on a transaction.
    __slots__ = ("__dict__", "__weakref__", "_is_snapshot", "_state", "cq_noted", "db")

    def __init__(self, database: api.Database, state: TransactionState, is_snapshot: bool) -> None:
        self.db = database
        self._state = state
        self._is_snapshot = is_snapshot
        self.cq_noted: Any = None  # see `cq.store.own_writes`

    def get(self, key: Any) -> Value:
        """The value of a key."""
        key, state = key_bytes(key), self._state
        # A fast path for most reads of passes: no own write, option or error can matter.
        is_plain = (
            self._is_snapshot
            and state.snapshot is not None
            and key < USER_END
            and len(key) <= MAX_KEY_BYTES
            and not (state.writes or state.committing)
            and state.deferred is state.ended is state.deadline is None
        )
        if not is_plain:
            if refusal := state.refusal():
                return failed(Value, refusal)
            if key >= USER_END and key != METADATA_VERSION and key >= state.read_end:
                return failed(Value, FDBError(KEY_OUTSIDE_LEGAL_RANGE))
            if len(key) > MAX_KEY_BYTES:
                return ready(Value, None)
        state.has_read = True
        try:
            if is_plain:
                return ready(Value, state.take_snapshot().get(key), state.cancellation)
            return self._value(key)
        except FDBError as error:
            return state.failed_read(Value, error)

    def _value(self, key: bytes) -> Value:
        state, writes = self._state, None
        glance = state.take_glance() if key == METADATA_VERSION and self._may_glance() else None
        if glance is not None:
            value = ready(Value, glance.metadata, state.cancellation)
        else:
            view = self._view()
            value, writes = view.get(key, state.cancellation, state.settings.bypass_unreadable), view.writes
        if not self._is_snapshot:
            state.reads.add_key(key, writes)
        return value

    def _may_glance(self) -> bool:
        """Whether the metadata version can be read by a glance: there is no snapshot, and no own write covers it.

        A retry takes a snapshot: the first try may have failed because the metadata version changed between a glance
        and a later read. If it changes often, every try with a glance could fail.
        """
        state = self._state
        return (
            state.snapshot is None
            and not state.retries
            and not state.changes_metadata
            and not state.settings.read_system
        )

    def get_key(self, key_selector: KeySelector) -> Key:
        """The key that a selector resolves to; b"" before the first key, the end of the key space after the last."""
        state = self._state
        selector = _offset_selector(key_selector, state.read_end)
        if refusal := state.refusal():
            return failed(Key, refusal)
        if selector.key > state.read_end:
            return failed(Key, FDBError(KEY_OUTSIDE_LEGAL_RANGE))
        try:
            view = self._view()
            found = view.resolve(*selector)
        except FDBError as error:
            return state.failed_read(Key, error)
        if not self._is_snapshot:
            state.reads.add_selector(*selector, found, view.writes)
        return ready(Key, found, state.cancellation)

    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = ITERATOR
    ) -> FDBRange:
        """The rows from `begin` to before `end`: keys or selectors, or None for an end of the key space.

        The first piece is read now, the others by the iteration, all of the same version. `limit` 0 or -1 means all
        rows; `streaming_mode` is one of the binding's numbers.
        """
        read_end = self._state.read_end
        first = _offset_selector(b"" if begin is None else begin, read_end)
        last = _offset_selector(USER_END if end is None else end, read_end)
        request = RangeRequest(first, last, 0 if limit == -1 else index(limit), bool(reverse), streaming_mode)
        return FDBRange(self._read_range, request)

    def _read_range(self, request: RangeRequest) -> Future[RangePiece]:
        """One piece of a range: rows, and whether more may follow."""
        begin, end, limit, reverse, mode, iteration = request
        state = self._state
        if mode == EXACT and not limit:  # first: the binding checks it before it calls the transaction
            return failed(Future, FDBError(EXACT_MODE_WITHOUT_LIMITS))
        if refusal := state.refusal():
            return failed(Future, refusal)
        if begin.key > state.read_end or end.key > state.read_end:
            return failed(Future, FDBError(KEY_OUTSIDE_LEGAL_RANGE))
        if limit < 0:
            return failed(Future, FDBError(RANGE_LIMITS_INVALID))
        if begin.offset >= end.offset and begin.key >= end.key:
            return ready(Future, ([], False), state.cancellation)
        try:
            view = self._view()
            bounds = _bound(view, begin), _bound(view, end)
            found = view.rows(*bounds, limit or _UNLIMITED, piece_bytes(mode, iteration), reverse)
        except FDBError as error:
            return state.failed_read(Future, error)
        if not self._is_snapshot:
            seen = range_conflict(request, bounds, *found)
            state.reads.add_range(*seen, view.writes)
        return ready(Future, found, state.cancellation)

    def _view(self) -> ReadYourWrites:
        """The view for a read, with the own writes visible to it."""
        state = self._state
        state.has_read = True
        settings = state.settings
        visible = not (settings.ryw_disabled or (self._is_snapshot and settings.snapshot_ryw <= 0))
        writes = state.own_writes() if visible else None
        return ReadYourWrites(state.take_snapshot, writes, state.read_end)

    def get_read_version(self) -> FutureInt64:
        """The version that reads see. It includes every commit that returned before it was taken."""
        state = self._state
        error = state.end_error() if state.deferred is None else FDBError(state.deferred)
        if error:
            return failed(FutureInt64, error)
        if state.version is not None:
            return ready(FutureInt64, state.version)
        try:
            state.take_snapshot()
        except FDBError as failure:
            return failed(FutureInt64, failure)
        if state.committing:
            state.release()
        return ready(FutureInt64, state.version, state.cancellation)

    def get_estimated_range_size_bytes(self, begin_key: Any, end_key: Any) -> FutureInt64:
        """The bytes of committed keys and values in [begin_key, end_key)."""
        begin, end = key_bytes(begin_key), key_bytes(end_key)
        return self._measure(FutureInt64, begin, end, lambda snapshot: snapshot.range_size(begin, end))

    def get_range_split_points(
        self, begin_key: Any, end_key: Any, chunk_size: int, limit: int = -1
    ) -> FutureKeyArray:
        """Keys that cut [begin_key, end_key) into parts of about `chunk_size` bytes, both ends included."""
        if chunk_size <= 0:
            raise ValueError("Invalid begin key, end key or chunk size")
        begin, end = key_bytes(begin_key), key_bytes(end_key)
        return self._measure(
            FutureKeyArray, begin, end, lambda snapshot: snapshot.split_points(begin, end, chunk_size, limit)
        )

    def _measure(self, kind: type[F], begin: bytes, end: bytes, measure: Callable[[Snapshot], object]) -> F:
        """Measure stored rows in a new snapshot; this is no read of the transaction and adds no conflict."""
        state = self._state
        if refusal := state.refusal():
            return failed(kind, refusal)
        if begin > end:
            return failed(kind, FDBError(INVERTED_RANGE))
        if end > state.read_end:
            return failed(kind, FDBError(KEY_OUTSIDE_LEGAL_RANGE))
        try:
            snapshot = state.engine.snapshot()
            try:
                return ready(kind, measure(snapshot), state.cancellation)
            finally:
                snapshot.close()
        except FDBError as error:
            return failed(kind, error)


def range_conflict(request: RangeRequest, bounds: Range, rows: list[Row], more: bool) -> Range:
    """The range that a range read depends on; `bounds` are the results of its selectors."""
    begin, end, _, reverse, *_ = request
    low, high = min(begin.key, bounds[0]), max(end.key, bounds[1])
    if more and rows:
        # Rows beyond the last row returned cannot change a limited result, unless they are counted by a selector.
        if reverse and begin.offset <= 1:
            low = rows[-1][0]
        elif not reverse and end.offset > 0:
            high = after(rows[-1][0])
    return low, high


def _bound(view: ReadYourWrites, selector: OffsetSelector) -> bytes:
    return selector.key if selector.offset == 1 else view.resolve(*selector)


def _offset_selector(selector: Any, read_end: bytes) -> OffsetSelector:
    """A key or a selector as an `OffsetSelector`. A selector with `or_equal` starts directly after the key.

    At the end of the keys that the transaction may read, there is no key, so that it also starts there.
    """
    if not isinstance(selector, KeySelector):
        return OffsetSelector(key_bytes(selector), 1)
    key = key_bytes(selector.key)
    return OffsetSelector(after(key) if selector.or_equal and key != read_end else key, selector.offset)
