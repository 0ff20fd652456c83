"""The check of an exported table: compares it with the queue's values in pages, while both are in use.

A difference found at first may be a change that is not exported yet. It counts if the same value still differs after
all entries of its bucket queued at that time were exported. This is checked twice, since a value may have changed and
changed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, cast

import sqlalchemy as sa

from cq import runtime
from cq.admin.backfill import current_generation
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import CqError
from cq.keys import QueueKeys, version_of
from cq.keys.link import versionstamp_of
from cq.observers.links.log import BUCKETS, encoded_key
from cq.observers.links.operate import OpenLink
from cq.observers.links.sql.check import check
from cq.observers.links.sql.dialects.dialect import CannotConvert, Dialect, rows_of
from cq.observers.links.sql.table import SEQUENCE, UPDATED_AT, columns_of, same
from cq.observers.links.sql.target import SqlTarget, pages
from cq.observers.links.state import entries_aside
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Transaction, Void
from cq.store.transact import transact
from cq.store.watch import wait_until
from cq.verify.piece import Difference
from cq.verify.verification import Verification

PAGE: Final = 500
MAX_DIFFERENCES: Final = 1_000
"""Maximum number of reported differences: a table with more of them needs a rebuild, whatever they are."""
_ROUNDS: Final = 3


class TableCheck:
    """The check of the table of a link; run it once.

    Args:
        link: the link.

    Attributes:
        undecided: keys without a result: their changes were not exported in time.
    """

    def __init__(self, link: OpenLink) -> None:
        self.db = link.db
        self.link = link
        self.keys = link.keys
        self.queue = CombineQueue(link.queue)
        target = cast(SqlTarget, link.target)
        self.reporting, self.definition = target.reporting, target.definition
        self.feeder = target.feeder
        self._deadline = 0.0
        self.undecided: list[Any] = []
        self._are_rows_checked = True

    def run(self, verification: Verification, wait_seconds: float) -> Iterator[Difference]:
        """Compare all values, then all rows, then the keys that differ once more.

        In total it waits for `wait_seconds` seconds for entries to be sent.

        Adds to the totals of the verification: `values` and `rows` compared, keys that are `waiting` for their export,
        and whether the `whole` table was compared: False if `MAX_DIFFERENCES` ended the check early.

        Raises `CqError` while the export is still being filled with all values, `LinkFailed` if the reporting
        database cannot be read.
        """
        self._deadline = runtime.monotonic() + wait_seconds
        self._check_filled()
        totals, found = verification.totals, 0
        totals |= {"values": 0, "rows": 0}
        suspects: dict[bytes, Any] = {}
        is_whole = False
        for what, compared in chain(self._compare_pages(suspects), [("", 0)]):
            is_whole = not what
            if what:
                totals[what] += compared
            if len(suspects) >= MAX_DIFFERENCES or is_whole:
                for difference in self._confirm(suspects):
                    found += 1
                    yield difference
                suspects.clear()
            verification.count(compared)
            if found + len(self.undecided) >= MAX_DIFFERENCES:
                break
        totals |= {"waiting": len(self.undecided), "whole": is_whole}
        if self.undecided:
            verification.note(
                "keys of the table that were not compared, as their changes are not sent yet: "
                f"{len(self.undecided):,}"
            )
        if not is_whole:
            verification.note(
                "the comparison of the table stopped early because of too many differences: `cq link rebuild` "
                "sends everything again"
            )
        if not self._are_rows_checked:
            verification.note(
                "surplus rows were not searched for: the application's columns do not contain the key"
            )

    def _compare_pages(self, suspects: dict[bytes, Any]) -> Iterator[tuple[str, int]]:
        """Compare all values and rows in pages; yield what was compared, and the size of each page."""
        values = iter(self.queue.scan(self.db))
        while page := dict(islice(values, PAGE)):
            self._compare(page, suspects)
            yield "values", len(page)
        for rows in pages(self.reporting, self.definition):
            self._search(rows, suspects)
            yield "rows", len(rows)

    def _check_filled(self) -> None:
        with self.reporting.reading() as (conn, dialect):
            check(conn, dialect, self.definition, self.feeder)
        generation = transact(
            self.db, lambda tr: current_generation(tr.snapshot, self.link.queue, self.link.observer.name)
        )
        if generation != self.link.observer.generation:
            raise CqError(
                f"link {self.keys.link!r} of queue {self.link.queue!r} is still being filled with all values: run "
                "workers, and verify once `cq link list` no longer shows `filling`"
            )

    # Comparing

    def _compare(self, values: Mapping[Any, Any], suspects: dict[bytes, Any]) -> None:
        """Find values whose rows are missing or different."""
        dialect, rows = self._rows_of(list(values))
        for key, value in values.items():
            if not self._agrees(dialect, key, value, rows.get(encoded_key(key))):
                suspects[encoded_key(key)] = key

    def _search(self, rows: list[dict[str, Any]], suspects: dict[bytes, Any]) -> None:
        """Find rows whose keys have no value."""
        layout = self.definition.layout
        found = [layout.key_of(row) for row in rows]
        if None in found:
            self._are_rows_checked = False
            return
        values = transact(self.db, lambda tr: self.queue.get_many(tr.snapshot, found))
        suspects.update({encoded_key(key): key for key, value in values.items() if value is None})

    def _rows_of(self, wanted: list[Any]) -> tuple[Dialect, dict[bytes, dict[str, Any]]]:
        """Read the database's dialect, and {encoded key: row} of the keys that have a row."""
        with self.reporting.reading() as (conn, dialect):
            table = self.definition.table(dialect)
            columns = list(table.primary_key.columns)
            names = [column.name for column in columns]
            encoded_keys = {}
            for key in wanted:
                with suppress(CannotConvert):
                    row = self.definition.layout.key_columns(dialect, [key])
                    (primary_key,) = zip(*row.values(), strict=True)
                    encoded_keys[primary_key] = encoded_key(key)
            given = columns[0].in_([primary_key[0] for primary_key in encoded_keys])
            if len(columns) > 1:
                given = sa.tuple_(*columns).in_(list(encoded_keys))
            rows = [dict(row) for row in conn.execute(sa.select(table).where(given)).mappings()]
        return dialect, {
            encoded_keys[primary_key]: row
            for row in rows
            if (primary_key := columns_of(row, names)) in encoded_keys
        }

    def _agrees(self, dialect: Dialect, key: Any, value: Any, row: Mapping[str, Any] | None) -> bool:
        if value is None or row is None:
            return value is None and row is None
        try:
            (expected,) = rows_of(self.definition.layout.value_columns(dialect, [key], [value]))
        except CannotConvert:
            return False
        return all(same(expected[name], row[name]) for name in expected)

    # Confirming

    def _confirm(self, suspects: dict[bytes, Any]) -> Iterator[Difference]:
        """Compare the keys that differ again, after the export of all entries queued in their buckets."""
        for encoded, key in suspects.items():
            seen: list[bytes] = []
            for _ in range(_ROUNDS):
                # In this order: value, wait, row. The wait covers the entry that wrote the value.
                value = transact(self.db, lambda tr, key=key: self.queue.get(tr.snapshot, key))  # type: ignore[misc]
                if not self._is_exported(encoded):
                    self.undecided.append(key)
                    break
                dialect, rows = self._rows_of([key])
                row = rows.get(encoded)
                if self._agrees(dialect, key, value, row):
                    break
                seen.append(codec.encode(value))  # sets and dicts with NaN are never equal to themselves
                if len(seen) > 1 and seen[-2] == seen[-1]:
                    yield self._difference(key, value, row)
                    break
            else:
                self.undecided.append(key)

    def _difference(self, key: Any, value: Any, row: Mapping[str, Any] | None) -> Difference:
        """The difference of a key. `details`: its `value`, its `row` without cq's columns, the `reason` if known."""
        encoded = encoded_key(key)
        aside = (each for each in entries_aside(self.db, self.keys) if each.encoded_key == encoded)
        reason = "".join(f"set aside: {each.error}" for each in islice(aside, 1))
        if row is not None:
            row = {name: part for name, part in row.items() if name not in (SEQUENCE, UPDATED_AT)}
        stored = "no value" if value is None else codec.brief(value)
        there = "no row" if row is None else codec.brief(row)
        what = f"the queue has {stored}, the table {there}" + (f" ({reason})" if reason else "")
        details = {"value": value, "row": row, "reason": reason}
        where = QueueKeys(self.link.queue).value(encoded)
        return Difference("link-table", where, what, key, repairable=True, details=details)

    def _is_exported(self, encoded: bytes) -> bool:
        """Wait until all entries in the key's bucket now are exported; False if `wait_seconds` are over first."""
        bucket = bucket_of(encoded, BUCKETS)

        now = transact(self.db, lambda tr: tr.get_read_version().wait())

        def read(tr: Transaction) -> tuple[bool, Void | None]:
            first = tr.snapshot.get_range(*self.keys.rows(bucket), limit=1).to_list()
            if not first or version_of(versionstamp_of(self.keys.split_row(first[0].key)[0])) > now:
                return True, None
            return False, tr.watch(first[0].key)

        return wait_until(self.db, read, max(0.0, self._deadline - runtime.monotonic()))
