"""The exporter into a SQL table, with exactly-once effect.

One SQL transaction locks the progress of a bucket (see `FencedExporter`), changes the table's rows, and advances the
progress. If either database was set back, the export stops, and the operator decides what to do.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter

import sqlalchemy as sa

from cq.observers.export.batch import (
    CLOSED,
    CannotExport,
    ExportBatch,
    ExportFailed,
    ExportStopped,
    FencedExporter,
    OutdatedBatch,
)
from cq.observers.export.rows import ExportEntry
from cq.observers.sql.check import check
from cq.observers.sql.dialects.dialect import CannotConvert, ColumnValues, Dialect
from cq.observers.sql.engine import ReportingDatabase, values_bound
from cq.observers.sql.progress import Feeder, ProgressTables
from cq.observers.sql.sweep import sweep
from cq.observers.sql.table import UPDATED_AT, TableDefinition


class SqlExporter(FencedExporter):
    """An exporter into a table, for all buckets of an export queue; thread-safe.

    Args:
        reporting: the reporting database.
        definition: the table.
        store: the id of the store with the export queue.
    """

    batch_entries = 20_000  # a transaction and its commit cost as much as hundreds of rows

    def __init__(self, reporting: ReportingDatabase, definition: TableDefinition, store: bytes) -> None:
        self.reporting = reporting
        self.definition = definition
        self.store = store
        self._prepared: set[tuple[int, int]] = set()
        self._preparing = threading.Lock()

    def __call__(self, batch: ExportBatch) -> None:
        try:
            self._prepare(batch)
            with self.reporting.transaction() as (conn, dialect):
                self._apply(conn, dialect, batch)
                self.signal("applied")
        except CannotExport:
            raise
        except Exception:
            with self._preparing:
                self._prepared.clear()  # check the tables again before the next batch: one may have been dropped
            raise
        self.signal("committed")

    @property
    def target(self) -> str:
        return f"the reporting database ({self.reporting})"

    @property
    def width(self) -> int | None:
        """One bucket at a time in a database that writes one transaction after the other."""
        return 1 if self.reporting.serializes_writes else None

    def advice(self, queue: str) -> str:
        return (
            f"`cq export rebuild {queue}` exports everything again; "
            f"`cq export rebase {queue}` continues from here, if both databases are known to agree"
        )

    def check_settings(self) -> str:
        self.reporting.check_url()
        return f"{self.target} has the table {str(self.definition)!r}"

    def close(self) -> None:
        self.reporting.close()

    def check(self, batches: Sequence[ExportBatch]) -> None:
        with self.reporting.transaction() as (conn, dialect):
            check(conn, dialect, self.definition, batches[0].queue)
            own = ProgressTables.of(dialect, self.definition.schema)
            self._claim(conn, own, batches[0])
            progress = own.all_of(conn, Feeder(self.store, batches[0].queue))
        for batch in batches:
            self._may_apply(batch, progress.get((batch.epoch, batch.bucket), b""))

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Delete the rows with a sequence below `below`, page by page; returns their number.

        Raises `ExportStopped` if another queue feeds the table, `OutdatedBatch` if the epoch has ended.
        """

        def hold(conn: sa.Connection, dialect: Dialect) -> None:
            own = ProgressTables.of(dialect, self.definition.schema)
            self._hold(conn, own, queue)
            progress = own.all_of(conn, Feeder(self.store, queue))
            if any(known > epoch or (known == epoch and at == CLOSED) for (known, _), at in progress.items()):
                raise OutdatedBatch

        return sweep(self.reporting, self.definition, below, hold)

    def _apply(self, conn: sa.Connection, dialect: Dialect, batch: ExportBatch) -> None:
        own = ProgressTables.of(dialect, self.definition.schema)
        feeder = Feeder(self.store, batch.queue)
        self._hold(conn, own, batch.queue)
        progress = own.locked(conn, feeder, batch.epoch, batch.bucket)
        self.signal("locked")
        if progress is None:
            if batch.cleared:
                self._target_was_set_back(batch)
            raise ExportFailed("the progress row of the bucket was deleted")
        if not self._may_apply(batch, progress):
            raise OutdatedBatch
        if progress >= batch.last:
            return
        upserts, deletes = self._coalesced(dialect, batch, progress)
        table = self.definition.table(dialect)
        with values_bound():
            if upserts:
                dialect.upsert(conn, table, upserts, {UPDATED_AT: dialect.moment(datetime.now(UTC))})
            if deletes:
                dialect.delete(conn, table, deletes)
        own.advance(conn, feeder, batch.epoch, batch.bucket, batch.last)

    # Checks of the tables and their feeder

    def _prepare(self, batch: ExportBatch) -> None:
        """Check the tables and insert the bucket's progress row, unless this exporter has done so before.

        This has a transaction of its own, so that its locks do not last while a batch is applied: a stalled worker then
        blocks no other bucket.
        """
        place = batch.epoch, batch.bucket
        with self._preparing:
            if place in self._prepared:
                return
        with self.reporting.transaction() as (conn, dialect):
            check(conn, dialect, self.definition, batch.queue)
            own = ProgressTables.of(dialect, self.definition.schema)
            self._claim(conn, own, batch)
            feeder = Feeder(self.store, batch.queue)
            if own.locked(conn, feeder, batch.epoch, batch.bucket) is None:
                if batch.cleared:
                    self._target_was_set_back(batch)
                own.insert_if_missing(conn, feeder, batch.epoch, batch.bucket)
        with self._preparing:
            self._prepared.add(place)

    def _claim(self, conn: sa.Connection, own: ProgressTables, batch: ExportBatch) -> None:
        table = str(self.definition)
        owner, is_new = own.claim(conn, table, Feeder(self.store, batch.queue))
        self._check_owner(owner, batch.queue)
        anything = sa.select(sa.literal(1)).select_from(self.definition.table(own.dialect)).limit(1)
        if is_new and conn.execute(anything).first() is not None:
            raise ExportStopped(
                f"the table {table!r} has rows already, which queue {batch.queue!r} did not write: empty it, export "
                f"to another table, or take it over with `cq export rebuild {batch.queue}`"
            )

    def _hold(self, conn: sa.Connection, own: ProgressTables, queue: str) -> None:
        """Prevent other queues from taking over the table until the transaction ends."""
        owner = own.owner(conn, str(self.definition), hold=True)
        if owner is None:
            raise ExportFailed(
                f"cq_tables has no row for the table, which queue {queue!r} feeds: it was deleted"
            )
        self._check_owner(owner, queue)

    def _check_owner(self, owner: Feeder, queue: str) -> None:
        if owner != Feeder(self.store, queue):
            of = (
                "this store"
                if owner.store == self.store
                else "another store (or of a former store in its place)"
            )
            raise ExportStopped(
                f"the table {str(self.definition)!r} is fed by queue {owner.queue!r} of {of}: export to another "
                f"table, or take it over with `cq export rebuild {queue}`"
            )

    # From entries to rows

    def _coalesced(
        self, dialect: Dialect, batch: ExportBatch, progress: bytes
    ) -> tuple[ColumnValues, ColumnValues]:
        """The columns of the rows to upsert and of the keys to delete, by the last entry of each key."""
        latest = {entry.encoded_key: entry for entry in batch.ordered if entry.sequence > progress}
        # In ascending order: if different keys have the same primary key, the latest entry wins, too.
        entries = sorted(latest.values(), key=attrgetter("sequence"))
        try:
            return self.definition.columns(dialect, entries)
        except CannotConvert as error:
            raise CannotExport(str(error), self._refused(dialect, entries)) from None

    def _refused(self, dialect: Dialect, entries: Sequence[ExportEntry]) -> dict[bytes, str]:
        """{sequence: error} of the entries that cannot be converted."""
        errors = {}
        for entry in entries:
            try:
                self.definition.columns(dialect, [entry])
            except CannotConvert as error:
                errors[entry.sequence] = str(error)
        return errors
