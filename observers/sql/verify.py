"""Verification of an exported table: compares it with the queue's values in pages, while both are in use.

A difference found at first may be a change that is not exported yet. It counts if the same value still differs after
all entries of its bucket queued at that time were exported. This is checked twice, since a value may have changed and
changed back.
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
MAX_DIFFERENCES: Final = 1_000
"""Maximum number of reported differences: a table with more of them needs a rebuild, whatever they are."""
_ROUNDS: Final = 3
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A key whose row in the table differs from its value in the queue.

    Attributes:
        key: the key; None for a row whose key cannot be derived from its columns.
        value: its value in the queue; None: the key has no value.
        row: its row in the table without `sequence` and `updated_at`; None: the key has no row.
        reason: the cause of the difference, if it is known.
    """

    key: Any
    value: Any
    row: dict[str, Any] | None
    reason: str = ""


@dataclass(slots=True)
class Verified:
    """The result of a verification.

    Attributes:
        values, rows: number of values and rows compared.
        differences: the confirmed differences.
        undecided: keys without a result: their changes were not exported in time.
        is_complete: whether all values and rows were compared; False if `MAX_DIFFERENCES` ended the verification early.
        are_rows_checked: whether the table was searched for rows of keys without a value. False if the columns are an
            application's own and have no `key_of`.
    """

    values: int = 0
    rows: int = 0
    differences: list[TableDifference] = field(default_factory=list)
    undecided: list[Any] = field(default_factory=list)
    is_complete: bool = True
    are_rows_checked: bool = True

    @property
    def is_enough(self) -> bool:
        """Whether the limit of differences is reached, so that the verification ends."""
        return len(self.differences) + len(self.undecided) >= MAX_DIFFERENCES


class Verifier:
    """A run of `verify`."""

    def __init__(self, db: Database, export: Export, wait_seconds: float) -> None:
        self.db = db
        self.export = export
        self.keys = ExportKeys(export.queue)
        self.queue = CombineQueue(export.queue)
        self.deadline = runtime.monotonic() + wait_seconds
        self.found = Verified()

    def run(self, progress: Callable[[Verified], object]) -> Verified:
        """Compare all values, then all rows, then the keys that differ once more."""
        self._check_filled()
        suspects: dict[bytes, Any] = {}
        for compared in self._compare_pages(suspects):
            if len(suspects) >= MAX_DIFFERENCES or compared is None:
                self._confirm(suspects)
                suspects.clear()
            progress(self.found)
            if self.found.is_enough:
                self.found.is_complete = compared is None
                break
        return self.found

    def _compare_pages(self, suspects: dict[bytes, Any]) -> Iterator[int | None]:
        """Compare all values and rows in pages, and yield the size of each page; None at the end."""
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
                f"the export of queue {self.export.queue!r} is still being filled with all values: run workers, and "
                "verify once `cq export list` no longer shows `filling`"
            )

    # Comparing

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
        """Read {encoded key: row} of the keys that have a row."""
        with self.export.reporting.reading() as (conn, dialect):
            self._dialect = dialect
            table = self.export.definition.table(dialect)
            columns = list(table.primary_key.columns)
            names = [column.name for column in columns]
            encoded_keys = {}
            for key in wanted:
                primary_key = self._primary_key(dialect, key)
                if primary_key is not None:
                    encoded_keys[primary_key] = encoded_key(key)
            given = columns[0].in_([primary_key[0] for primary_key in encoded_keys])
            if len(columns) > 1:
                given = sa.tuple_(*columns).in_(list(encoded_keys))
            rows = [dict(row) for row in conn.execute(sa.select(table).where(given)).mappings()]
        return {
            encoded_keys[primary_key]: row
            for row in rows
            if (primary_key := _primary_key_of(row, names)) in encoded_keys
        }

    def _primary_key(self, dialect: Dialect, key: Any) -> tuple[Any, ...] | None:
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

    # Confirming

    def _confirm(self, suspects: dict[bytes, Any]) -> None:
        """Compare the keys that differ again, after the export of all entries queued in their buckets."""
        for encoded, key in suspects.items():
            seen: list[Any] = []
            for _ in range(_ROUNDS):
                # In this order: value, wait, row. The wait covers the entry that wrote the value.
                value = transact(self.db, lambda tr, key=key: self.queue.get(tr.snapshot, key))  # type: ignore[misc]
                if not self._is_exported(encoded):
                    self.found.undecided.append(key)
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
                self.found.undecided.append(key)

    def _is_exported(self, encoded: bytes) -> bool:
        """Wait until all entries in the key's bucket now are exported; False if `wait_seconds` are over first."""
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
            runtime.sleep(_POLL_SECONDS)
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
        export: the queue's export.
        wait_seconds: how long to wait in total for entries to be exported.
        progress: called with the result so far, after each page.

    Raises `CqError` while the export is still being filled with all values, `ExportFailed` if the reporting database
    cannot be read.
    """
    return Verifier(db, export, wait_seconds).run(progress)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _primary_key_of(row: Mapping[str, Any], names: list[str]) -> tuple[Any, ...]:
    return tuple(bytes(part) if isinstance(part, memoryview) else part for part in columns_of(row, names))


def _shown(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: value for name, value in row.items() if name not in (SEQUENCE, UPDATED_AT)}
