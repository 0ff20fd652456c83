"""One pass over one bucket: read, combine, write, report.

    1. Read the bucket's state for real (two passes over one bucket conflict, and nobody else does), its notification
       and its first rows by snapshot reads, up to a limit.
    2. Leave out rows whose operation id was added by an earlier transaction.
    3. Take as many rows as can be combined within limits: read what is staged for their keys.
    4. Choose the keys to report: in hash order from the cursor, as many as are asked for. All others are folded:
       their updates are combined with what is staged, and staged. When the rows were not read to their end,
       nothing is reported, unless that has been so for too long (overload).
    5. Combine what is reported with the current values, write these, and tell the observers.
    6. Clear the rows in one range, the notification if it is still the one read and nothing is left, and write
       the state with a fresh token.

A pass touches the store only through its transaction and has no other effect, so a retry after
`commit_unknown_result` finds its own work done. Reading and reporting have limits of their own: a small row can mean
large writes once observers have had their say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cq import codec, keys
from cq.app import QueueCode
from cq.changes import Change
from cq.config import read_config
from cq.errors import CodeMismatch, CqError, InvalidData
from cq.keys import QueueKeys
from cq.reading import read_bounded
from cq.rows import Row, encode_row, first_tries, read_rows
from cq.setaside import set_aside
from cq.state import ABSENT, UNKNOWN, BucketState, Memory, fresh_token
from cq.store.api import VERSIONS_PER_SECOND, WANT_ALL, Transaction, error_code

_NOTHING: Final[Mapping[bytes, str]] = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a pass.

    Attributes:
        read_bytes: rows read (about; the last one may exceed it).
        load_bytes: staged updates read, and current values read (each; the last one may exceed it).
        overload_seconds: how long a bucket may not be read to its end before a pass reports all the same.
    """

    read_bytes: int = 240_000
    load_bytes: int = 400_000
    overload_seconds: float = 5.0


@dataclass(slots=True)
class PassResult:
    """What a pass has done, once its transaction is committed.

    Attributes:
        reported: keys whose value was written or found unchanged.
        folded: keys whose updates were staged.
        rows: rows taken away.
        repeated: rows left out because an earlier transaction had added their operation.
        aside: {encoded key: error} of keys set aside (an empty key stands for a row that cannot be read).
        more: whether work is left that no notification will announce.
        foreign: whether a row stamped later than the read version was met, and left.
        changes: how many changes the observers were told of.
        observer_bytes: by how much the observers have enlarged the transaction.
        was_ours: whether nobody else has passed since the pass whose memory was given.
        token, values: what a worker may remember after the commit.
    """

    reported: int = 0
    folded: int = 0
    rows: int = 0
    repeated: int = 0
    aside: dict[bytes, str] = field(default_factory=dict)
    more: bool = False
    foreign: bool = False
    changes: int = 0
    observer_bytes: int = 0
    was_ours: bool = False
    token: bytes = b""
    values: dict[bytes, Any] = field(default_factory=dict)


class ReportFailed(CqError):
    """An observer has raised; the transaction holds what it wrote before, and must be thrown away."""


class Pass:
    """One pass, in one transaction; `run` it once.

    Args:
        tr: a fresh transaction of either store, committed by the caller.
        code: the queue's configuration and code as this worker has them.
        bucket: which one.
        memory: what this worker remembers of the bucket; not changed here.
        limits: see there.
        max_report: how many keys to report at most.
        max_take: how many different keys of the rows to touch at most, None for no limit.
        last: encoded keys to report only when no others wait, and then one alone.
        condemned: {encoded key: error} of keys to set aside; nothing is reported then, and no observer called.
    """

    def __init__(
        self,
        tr: Transaction,
        code: QueueCode,
        bucket: int,
        *,
        memory: Memory | None = None,
        limits: Limits = Limits(),
        max_report: int = 1000,
        max_take: int | None = None,
        last: Collection[bytes] = (),
        condemned: Mapping[bytes, str] = _NOTHING,
    ) -> None:
        self.tr = tr
        self.code = code
        self.config = code.config
        self.bucket = bucket
        self.memory = memory or Memory()
        self.limits = limits
        self.max_report = 0 if condemned else max_report
        self.max_take = max_take
        self.last = last
        self.condemned = condemned
        self.keys = QueueKeys(self.config.name)
        self.result = PassResult()
        self.report: list[bytes] = []
        """The encoded keys being reported, for the caller that must know what failed."""

    def run(self) -> PassResult:
        """The whole pass, except for the commit.

        Raises:
            CodeMismatch: the queue's configuration has changed and asks for other code.
            ReportFailed: an observer has raised.
            FDBError: from the store or, if it is one that a retry may cure, from an observer.
        """
        self._read()
        self._take()
        if self.backlog.last_key is None and not self.state.staged and not self.state.unfinished_since:
            self._clear_notification()
            return self.result
        self._choose()
        self._write_values(self._load_current())
        self._fold()
        self._set_aside()
        self._finish()
        self._observe()
        return self.result

    def first_key(self) -> bytes | None:
        """The first key that `run` would touch, instead of running: what to condemn when a run kills its worker."""
        self._read()
        self._take()
        self._choose()
        return next(iter(self.updates or self.report), None)

    # 1 and 2: reading

    def _read(self) -> None:
        tr, generation = self.tr, self.config.generation
        read_version = tr.get_read_version()
        state = tr.get(self.keys.state(generation, self.bucket))
        notification = tr.snapshot.get(self.keys.notification(generation, self.bucket))
        rows = self.keys.rows(generation, self.bucket)
        if read_config(tr, self.config.name) != self.config:
            raise CodeMismatch(f"the configuration of queue {self.config.name!r} has changed")
        self.read_version = read_version.wait()
        self.backlog = read_rows(tr.snapshot, rows, self.limits.read_bytes, self.read_version)
        self.state = BucketState.from_bytes(state.value)
        self.notification = notification.value
        self.result.foreign = self.backlog.foreign
        self.result.was_ours = bool(self.state.token) and self.state.token == self.memory.token
        self.rows = first_tries(tr.snapshot, self.keys, self.backlog.rows)
        self.result.repeated = len(self.backlog.rows) - len(self.rows)

    # 3: taking as many rows as can be combined

    def _take(self) -> None:
        """Decide which updates to take, and where the rest of a row of which only a part is taken begins."""
        self.updates: dict[bytes, list[Any]] = {}
        self.rest: tuple[Row, int] | None = None
        wanted = dict.fromkeys(encoded for row in self.rows for encoded, _ in row.updates)
        if self.max_take is not None and len(wanted) > self.max_take:
            wanted = dict.fromkeys(list(wanted)[: self.max_take])
        self.staged: dict[bytes, bytes | None] = {}
        if self.state.staged:
            get = self.tr.snapshot.get
            first = [*self.condemned, *(encoded for encoded in wanted if encoded not in self.condemned)]
            self.staged = read_bounded(
                lambda encoded: get(self.keys.staged(encoded)), first, self.limits.load_bytes
            )
            wanted = {encoded: None for encoded in wanted if encoded in self.staged}
        for row in self.rows:
            for position, (encoded, update) in enumerate(row.updates):
                if encoded not in wanted:
                    self.rest = row, position
                    return
                self.updates.setdefault(encoded, []).append(update)

    @property
    def _at_end(self) -> bool:
        return self.backlog.at_end and self.rest is None

    @property
    def _overloaded(self) -> bool:
        since = self.state.unfinished_since
        return bool(since) and self.read_version - since >= self.limits.overload_seconds * VERSIONS_PER_SECOND

    # 4: choosing what to report

    def _choose(self) -> None:
        self.all_staged_known = not self.state.staged
        if not self.max_report or not (self._at_end or self._overloaded):
            return
        if self.state.staged:
            self._read_staged()
        candidates = [key for key in {**self.updates, **self.staged} if self._has_work(key)]
        others = [key for key in candidates if key not in self.last]
        self.report = (
            self._from_cursor(others)[: self.max_report] if others else self._from_cursor(candidates)[:1]
        )

    def _has_work(self, encoded: bytes) -> bool:
        return encoded in self.updates or self.staged.get(encoded) is not None

    def _from_cursor(self, encoded_keys: list[bytes]) -> list[bytes]:
        """In hash order, beginning behind the cursor."""
        places = {_place(encoded): encoded for encoded in encoded_keys}
        cursor = self.state.cursor
        return [places[place] for place in sorted(places, key=lambda place: (place <= cursor, place))]

    def _read_staged(self) -> None:
        """Read what is staged from the cursor onward, as much as may be reported."""
        begin, end = self.keys.staged_of_bucket(self.config.buckets, self.bucket)
        middle = min(max(begin, keys.after(begin[:-4] + self.state.cursor)), end)
        room, size = self.max_report + len(self.last) + 1, 0
        for bounds in ((middle, end), (begin, middle)):
            for row in self.tr.snapshot.get_range(*bounds, limit=room, streaming_mode=WANT_ALL):
                room -= 1
                if size > self.limits.load_bytes or room == 0:
                    return
                size += len(row.value)
                self.staged[self.keys.encoded_key(row.key)] = row.value
        self.all_staged_known = True

    # 5: combining and writing

    def _load_current(self) -> dict[bytes, Any]:
        """The current values of what is reported, remembered or read; keys beyond the limit are not reported."""
        current: dict[bytes, Any] = {}
        if self.result.was_ours:
            remembered = self.memory.values
            current = {encoded: remembered[encoded] for encoded in self.report if encoded in remembered}
        missing = [encoded for encoded in self.report if encoded not in current]
        get = self.tr.snapshot.get
        found = read_bounded(lambda encoded: get(self.keys.value(encoded)), missing, self.limits.load_bytes)
        for encoded, value in found.items():
            current[encoded] = ABSENT if value is None else codec.decode(value)
        if len(found) < len(missing):
            self.report = [encoded for encoded in self.report if encoded in current]
        return current

    def _write_values(self, current: dict[bytes, Any]) -> None:
        """Write the new value of each key to report, and note the changes."""
        self.changes: list[Change] = []
        self.done: set[bytes] = set()
        for encoded in self.report:
            old = current[encoded]
            values = self._pending(encoded)
            if old is not ABSENT:
                values.insert(0, old)
            try:
                key = self.config.key.decode(encoded)
                new, data = self._combined(key, values, current=True)
            except Exception as error:  # noqa: BLE001 - one bad key holds nobody up
                self._raise_store_error(error)
                self.result.aside[encoded] = _told(error)
                continue
            self._write_value(encoded, key, old, new, data)
        self.result.reported = len(self.done)

    def _write_value(self, encoded: bytes, key: Any, old: Any, new: Any, data: bytes) -> None:
        self.done.add(encoded)
        if self.staged.get(encoded) is not None:
            self.tr.clear(self.keys.staged(encoded))
        self.result.values[encoded] = new if len(data) <= self.memory.max_value_bytes else UNKNOWN
        if _same(old, new):
            return
        if new is ABSENT:
            self.tr.clear(self.keys.value(encoded))
        else:
            self.tr.set(self.keys.value(encoded), data)
        complete = self._at_end
        self.changes.append(
            Change(key, None if old is ABSENT else old, None if new is ABSENT else new, complete)
        )

    def _pending(self, encoded: bytes) -> list[Any]:
        """What is staged for a key, and its updates taken, in commit order."""
        staged = self.staged.get(encoded)
        return ([] if staged is None else [codec.decode(staged)]) + self.updates.get(encoded, [])

    def _combined(self, key: Any, values: list[Any], *, current: bool) -> tuple[Any, bytes]:
        """Values combined, and their encoding; as a current value, one that is empty is ABSENT."""
        combiner = self.code.combiner
        value = combiner.combine(key, values) if len(values) > 1 else values[0]
        if value is None:
            raise InvalidData(f"the combiner {combiner.name!r} returned None for the key {key!r}")
        if not current:
            return value, codec.encode_value(value, codec.MAX_UPDATE_BYTES)
        if combiner.is_empty(value):
            return ABSENT, b""
        self.config.value.check(value)
        return value, codec.encode_value(value)

    def _fold(self) -> None:
        """Stage the updates taken of all keys that are not reported."""
        for encoded in self.updates:
            if encoded in self.done or encoded in self.result.aside or encoded in self.condemned:
                continue
            try:
                key = self.config.key.decode(encoded)
                _, data = self._combined(key, self._pending(encoded), current=False)
            except Exception as error:  # noqa: BLE001 - one bad key holds nobody up
                self._raise_store_error(error)
                self.result.aside[encoded] = _told(error)
                continue
            self.tr.set(self.keys.staged(encoded), data)
            self.result.folded += 1

    def _raise_store_error(self, error: Exception) -> None:
        if error_code(error) is not None:
            raise error

    # Setting aside

    def _set_aside(self) -> None:
        """Move the updates of keys that cannot be combined or reported out of the way; `d` is left alone."""
        for encoded, error in self.condemned.items():
            if self._has_work(encoded):
                self.result.aside[encoded] = error
        for encoded, error in self.result.aside.items():
            set_aside(self.tr, self.keys, encoded, error, self._pending(encoded))
            if self.staged.get(encoded) is not None:
                self.tr.clear(self.keys.staged(encoded))
        self._set_broken_aside()

    def _set_broken_aside(self) -> None:
        piece = 0
        for broken in self.backlog.broken:
            if self.rest is None or broken.key < self.rest[0].key:
                raw = [broken.value[start : start + 50_000] for start in range(0, len(broken.value), 50_000)]
                piece = set_aside(self.tr, self.keys, b"", broken.error, raw, piece)
                self.result.aside[b""] = broken.error

    # 6: finishing

    def _finish(self) -> None:
        self._clear_rows()
        left = (self.staged.keys() - self.done - self.result.aside.keys()) if self.state.staged else set()
        staged = (
            bool(self.result.folded)
            or not self.all_staged_known
            or any(self.staged[encoded] is not None for encoded in left)
        )
        if self._at_end and not staged and not self.backlog.foreign:
            self._clear_notification()
        self.result.more = not self._at_end or staged
        self.result.token = fresh_token()
        since = 0 if self._at_end else self.state.unfinished_since or self.read_version
        cursor = _place(self.report[-1]) if self.report else self.state.cursor
        state = BucketState(self.result.token, staged, cursor, since)
        self.tr.set(self.keys.state(self.config.generation, self.bucket), state.to_bytes())

    def _clear_rows(self) -> None:
        """Take away the rows read, up to the one of which only a part was taken; its rest stays in its place."""
        rows, last_key = self.backlog.rows, self.backlog.last_key
        if last_key is None:
            return
        begin = self.keys.rows(self.config.generation, self.bucket)[0]
        if self.rest is None:
            self.tr.clear_range(begin, keys.after(last_key))
            self.result.rows = len(rows)
            return
        row, position = self.rest
        self.tr.clear_range(begin, row.key)
        self.result.rows = sum(other.key < row.key for other in rows)
        if position:
            self.tr.set(row.key, encode_row(row.operation, row.updates[position:]))

    def _clear_notification(self) -> None:
        if self.notification is not None:
            self.tr.compare_and_clear(
                self.keys.notification(self.config.generation, self.bucket), self.notification
            )

    def _observe(self) -> None:
        """Tell the observers, last of all: they may add to this very queue, and their size is measured."""
        if not self.changes or not self.code.observers:
            return
        before = self.tr.get_approximate_size().wait()
        for observer in self.code.observers:
            try:
                observer.function(self.tr, list(self.changes))
            except Exception as error:
                self._raise_store_error(error)
                raise ReportFailed(f"observer {observer.name!r}: {_told(error)}") from error
        self.result.changes = len(self.changes)
        self.result.observer_bytes = self.tr.get_approximate_size().wait() - before


def _place(encoded: bytes) -> bytes:
    """Where a key stands in hash order."""
    return keys.key_hash(encoded).to_bytes(4, "big") + encoded


def _same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and bool(old == new))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
