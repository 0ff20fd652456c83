"""Comparing a table with the values of the queue that it is exported from, online and in pieces.

A difference that is found at first may be a change on its way. It counts when all that waited to be exported when it
was seen has been exported, and the same value still differs: once more, as a value may have changed and changed back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from cq import runtime
from cq.admin.backfill import current_generation
from cq.encoding.hashing import bucket_of
from cq.errors import CqError
from cq.keys import version_of
from cq.keys.export import ExportKeys, versionstamp_of
from cq.observers.export.queue import BUCKETS
from cq.observers.export.rows import encoded_key
from cq.observers.export.state import entries_aside
from cq.observers.sql.check import check
from cq.observers.sql.configured import NAME, Export
from cq.observers.sql.dialects.dialect import CannotConvert, Dialect
from cq.observers.sql.sweep import pages
from cq.observers.sql.table import SEQUENCE, UPDATED_AT, columns_of, same
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Database, Transaction
from cq.store.transact import transact

PAGE: Final = 500
MOST: Final = 1_000
"""Of differences that are named: a table that differs in more of them is to be rebuilt, whichever these are."""
_ROUNDS: Final = 3
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A key of which the table does not say what the queue does.

    Attributes:
        key: the key; None for a row whose key the columns do not tell.
        value: its value in the queue, None when it has none.
        row: its row in the table without `sequence` and `updated_at`, None when there is none.
        reason: why, if that is known.
    """

    key: Any
    value: Any
    row: dict[str, Any] | None
    reason: str = ""


@dataclass(slots=True)
class Verified:
    """What a comparison has found.

    Attributes:
        values, rows: how many of either were looked at.
        differences: those that are certain.
        waiting: keys that could not be decided on: their changes were still on their way.
        whole: whether all was looked at; not when `MOST` differences, or keys to wait for, were found before.
        are_rows_checked: whether the table was searched for rows of keys without a value. False if the columns are an
            application's own and have no `key_of`.
    """

    values: int = 0
    rows: int = 0
    differences: list[TableDifference] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    whole: bool = True
    are_rows_checked: bool = True

    @property
    def is_enough(self) -> bool:
        """Whether so much differs that to go on would say no more."""
        return len(self.differences) + len(self.waiting) >= MOST


class Verifier:
    """Compares; see `verify`."""

    def __init__(self, db: Database, export: Export, wait_seconds: float) -> None:
        self.db = db
        self.export = export
        self.keys = ExportKeys(export.queue)
        self.queue = CombineQueue(export.queue)
        self.deadline = runtime.monotonic() + wait_seconds
        self.found = Verified()

    def run(self, progress: Callable[[Verified], object]) -> Verified:
        """Look at all values, then at all rows, then again at what differs."""
        self._check_filled()
        suspects: dict[bytes, Any] = {}
        for looked in self._looked(suspects):
            if len(suspects) >= MOST or looked is None:
                self._decide(suspects)
                suspects.clear()
            progress(self.found)
            if self.found.is_enough:
                self.found.whole = looked is None
                break
        return self.found

    def _looked(self, suspects: dict[bytes, Any]) -> Iterator[int | None]:
        """Look at all values and rows, some at a time, how many; None at the end."""
        for pairs in _chunks(self.queue.scan(self.db), PAGE):
            self._compare(dict(pairs), suspects)
            self.found.values += len(pairs)
            yield len(pairs)
        for rows in pages(self.export.reporting, self.export.definition):
            self._search(rows, suspects)
            self.found.rows += len(rows)
            yield len(rows)
        yield None

    def _check_filled(self) -> None:
        with self.export.reporting.reading() as (conn, dialect):
            check(conn, dialect, self.export.definition, self.export.queue)
        generation = transact(self.db, lambda tr: current_generation(tr.snapshot, self.export.queue, NAME))
        if generation != self.export.observer.generation:
            raise CqError(
                f"the export of queue {self.export.queue!r} is still being told of all values: run workers, and verify "
                "when `cq export list` says `filling` no more"
            )

    # Looking

    def _compare(self, values: Mapping[Any, Any], suspects: dict[bytes, Any]) -> None:
        """Find values whose rows are missing or different."""
        rows = self._rows_of(list(values))
        for key, value in values.items():
            if not self._agrees(key, value, rows.get(encoded_key(key))):
                suspects[encoded_key(key)] = key

    def _search(self, rows: list[dict[str, Any]], suspects: dict[bytes, Any]) -> None:
        """Find rows whose keys have no value."""
        layout = self.export.definition.layout
        found = [layout.key_of(row) for row in rows]
        if None in found:
            self.found.are_rows_checked = False
            return
        values = transact(self.db, lambda tr: self.queue.get_many(tr.snapshot, found))
        suspects.update({encoded_key(key): key for key, value in values.items() if value is None})

    def _rows_of(self, wanted: list[Any]) -> dict[bytes, dict[str, Any]]:
        """{encoded key: row} of those keys that have one."""
        with self.export.reporting.reading() as (conn, dialect):
            self._dialect = dialect
            table = self.export.definition.table(dialect)
            columns = list(table.primary_key.columns)
            names = [column.name for column in columns]
            places = {}
            for key in wanted:
                place = self._place(dialect, key)
                if place is not None:
                    places[place] = encoded_key(key)
            given = columns[0].in_([place[0] for place in places])
            if len(columns) > 1:
                given = sa.tuple_(*columns).in_(list(places))
            rows = [dict(row) for row in conn.execute(sa.select(table).where(given)).mappings()]
        return {places[place]: row for row in rows if (place := _place_of(row, names)) in places}

    def _place(self, dialect: Dialect, key: Any) -> tuple[Any, ...] | None:
        try:
            return tuple(self.export.definition.layout.key_row(dialect, key).values())
        except CannotConvert:
            return None

    def _agrees(self, key: Any, value: Any, row: Mapping[str, Any] | None) -> bool:
        if value is None or row is None:
            return value is None and row is None
        try:
            expected = self.export.definition.layout.value_row(self._dialect, key, value)
        except CannotConvert:
            return False
        return all(same(expected[name], row[name]) for name in expected)

    # Deciding

    def _decide(self, suspects: dict[bytes, Any]) -> None:
        """Look again at what differs, once all that waited meanwhile is exported."""
        for encoded, key in suspects.items():
            seen: list[Any] = []
            for _ in range(_ROUNDS):
                value = transact(self.db, lambda tr, key=key: self.queue.get(tr.snapshot, key))  # type: ignore[misc]
                if not self._is_exported(encoded):
                    self.found.waiting.append(key)
                    break
                row = self._rows_of([key]).get(encoded)
                if self._agrees(key, value, row):
                    break
                seen.append(value)
                if seen[-2:] == [value, value]:
                    self.found.differences.append(
                        TableDifference(key, value, _shown(row), self._reason(encoded))
                    )
                    break
            else:
                self.found.waiting.append(key)

    def _is_exported(self, encoded: bytes) -> bool:
        """Wait until all that waits in the key's bucket now is exported; False when the time is over."""
        bucket = bucket_of(encoded, BUCKETS)

        def oldest(tr: Transaction) -> tuple[int, int]:
            now = tr.get_read_version()
            first = tr.snapshot.get_range(*self.keys.rows(bucket), limit=1).to_list()
            stamp = version_of(versionstamp_of(self.keys.sequence_of_row(first[0].key))) if first else -1
            return now.wait(), stamp

        then, first = transact(self.db, oldest)
        while 0 <= first <= then:
            if runtime.monotonic() > self.deadline:
                return False
            runtime.sleep(_LOOK_SECONDS)
            _, first = transact(self.db, oldest)
        return True

    def _reason(self, encoded: bytes) -> str:
        aside = (each for each in entries_aside(self.db, self.keys) if each.encoded_key == encoded)
        return "".join(f"set aside: {each.error}" for each in islice(aside, 1))


def verify(
    db: Database,
    export: Export,
    *,
    wait_seconds: float = 30.0,
    progress: Callable[[Verified], object] = lambda found: None,
) -> Verified:
    """Compare the table with the queue's current values.

    Args:
        db: a database of either store.
        export: of the queue.
        wait_seconds: how long to wait for changes on their way to be exported, all in all.
        progress: called with what was found so far.

    Raises `CqError` while the export is still being told of all values, `ExportFailed` when the reporting database
    cannot be read.
    """
    return Verifier(db, export, wait_seconds).run(progress)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _place_of(row: Mapping[str, Any], names: list[str]) -> tuple[Any, ...]:
    return tuple(bytes(part) if isinstance(part, memoryview) else part for part in columns_of(row, names))


def _shown(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: value for name, value in row.items() if name not in (SEQUENCE, UPDATED_AT)}
