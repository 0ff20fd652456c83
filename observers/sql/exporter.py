"""Exporting into a SQL table, exactly once in effect.

The table's rows and the progress of their bucket change in one SQL transaction, which locks the progress first. That is
the sequence of the last entry applied; entries up to it are skipped. So a batch that is exported again after a crash,
or by a worker that stood still while others went on, changes nothing, and what was deleted stays so.

When the store has entries cleared that the reporting database's progress has not reached, that database was set back.
When its progress is at an entry that the store neither holds nor has cleared, the store was set back. Versions are not
compared for this: a restore raises them. Either way the export stops, for somebody to decide what to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from cq.observers.export.batch import ExportBatch
from cq.observers.export.errors import CannotExport, ExportFailed, ExportStopped, OutdatedBatch
from cq.observers.export.rows import ExportEntry
from cq.observers.sql.check import check
from cq.observers.sql.dialects.dialect import CannotConvert, Dialect
from cq.observers.sql.engine import ReportingDatabase, values_bound
from cq.observers.sql.progress import CLOSED, Feeder, ProgressTables
from cq.observers.sql.sweep import sweep
from cq.observers.sql.table import TableDefinition


def _no_signal(point: str) -> None:
    """What tests replace, to do something at a point."""


class SqlExporter:
    """An exporter into a table; used by all buckets of an export queue, from any thread.

    Args:
        reporting: the database.
        definition: the table.
        store: the id of the store that the batches are from.
    """

    def __init__(
        self,
        reporting: ReportingDatabase,
        definition: TableDefinition,
        store: bytes,
        *,
        signal: Callable[[str], object] = _no_signal,
    ) -> None:
        self.reporting = reporting
        self.definition = definition
        self.store = store
        self._signal = signal
        self._prepared: set[tuple[int, int]] = set()
        self._preparing = threading.Lock()

    def __call__(self, batch: ExportBatch) -> None:
        """Apply a batch; raises `CannotExport`, `ExportFailed`, `OutdatedBatch` or `ExportStopped`."""
        try:
            self._prepare(batch)
            with self.reporting.transaction() as (conn, dialect):
                self._apply(conn, dialect, batch)
                self._signal("applied")
        except CannotExport:
            raise
        except Exception:
            with self._preparing:
                self._prepared.clear()  # whatever it was: before going on, look at the tables again
            raise
        self._signal("committed")

    def close(self) -> None:
        """Close the connections to the reporting database."""
        self.reporting.close()

    def check(self, batches: Sequence[ExportBatch]) -> None:
        """What batches of all buckets would find, without applying any: for the start. Raises as a call does."""
        with self.reporting.transaction() as (conn, dialect):
            check(conn, dialect, self.definition, batches[0].queue)
            own = ProgressTables.of(dialect, self.definition.schema)
            self._claim(conn, own, batches[0])
            progress = own.all_of(conn, Feeder(self.store, batches[0].queue))
        for batch in batches:
            self._may_apply(batch, progress.get((batch.epoch, batch.bucket), b""))

    def sweep(self, queue: str, epoch: int, below: bytes) -> int:
        """Delete the rows whose sequence is below this one, online and in pieces; returns how many there were.

        Raises `OutdatedBatch` or `ExportStopped` when the table is another queue's, or the epoch has ended.
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
        self._signal("locked")
        if progress is None:
            raise ExportFailed("the row of progress is gone that was there just before")
        if not self._may_apply(batch, progress):
            raise OutdatedBatch
        if progress >= batch.last:
            return
        upserts, deletes = self._coalesced(dialect, batch, progress)
        table = self.definition.table(dialect)
        with values_bound():
            if upserts:
                dialect.upsert(conn, table, upserts)
            if deletes:
                dialect.delete(conn, table, deletes)
        own.advance(conn, feeder, batch.epoch, batch.bucket, batch.last)

    # Whether the tables are as expected, and nobody else's

    def _prepare(self, batch: ExportBatch) -> None:
        """Look at the tables and make the bucket's row of progress, unless this exporter has done so.

        In a transaction of its own: whoever stands still while he applies a batch holds up no other bucket.
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
                    self._reporting_was_set_back(batch)
                own.insert_if_missing(conn, feeder, batch.epoch, batch.bucket)
        with self._preparing:
            self._prepared.add(place)

    def _claim(self, conn: sa.Connection, own: ProgressTables, batch: ExportBatch) -> None:
        table = str(self.definition)
        owner, is_new = own.claim(conn, table, Feeder(self.store, batch.queue))
        self._check_owner(owner, batch.queue)
        if is_new and self._has_rows(conn, own.dialect):
            raise ExportStopped(
                f"the table {table!r} has rows already, which queue {batch.queue!r} has not written: empty it, export "
                f"to another table, or take it over with `cq export rebuild {batch.queue}`"
            )

    def _hold(self, conn: sa.Connection, own: ProgressTables, queue: str) -> None:
        """Keep everybody else from taking the table over until the transaction ends."""
        owner = own.owner(conn, str(self.definition), hold=True)
        if owner is None:
            raise ExportFailed(f"the row of cq_tables is gone that says that queue {queue!r} feeds the table")
        self._check_owner(owner, queue)

    def _check_owner(self, owner: Feeder, queue: str) -> None:
        if owner != Feeder(self.store, queue):
            of = "this store" if owner.store == self.store else "another store (or of this one, made anew)"
            raise ExportStopped(
                f"the table {str(self.definition)!r} is fed by queue {owner.queue!r} of {of}: export to another "
                f"table, or take it over with `cq export rebuild {queue}`"
            )

    def _has_rows(self, conn: sa.Connection, dialect: Dialect) -> bool:
        anything = sa.select(sa.literal(1)).select_from(self.definition.table(dialect)).limit(1)
        return conn.execute(anything).first() is not None

    # The fence

    def _may_apply(self, batch: ExportBatch, progress: bytes) -> bool:
        """Whether the entries behind `progress`, which was read after the batch, may be applied; else others have.

        Raises `OutdatedBatch` when the epoch has ended, `ExportStopped` when either database was set back.
        """
        if progress == batch.cleared or progress in batch.known:
            return True
        if progress < batch.cleared:
            self._reporting_was_set_back(batch)
        position = batch.read_position(progress)
        if position.epoch != batch.epoch:
            raise OutdatedBatch
        if position.cleared >= progress and progress != CLOSED:
            return False  # all of the batch has been applied and cleared
        if not position.holds:
            self._store_was_set_back(batch, progress)
        return True

    def _reporting_was_set_back(self, batch: ExportBatch) -> None:
        raise ExportStopped(
            f"the reporting database ({self.reporting}) lacks changes that bucket {batch.bucket} of queue "
            f"{batch.queue!r} has exported: it was set back or emptied, or is not the one exported to before. "
            f"{_advice(batch.queue)}"
        )

    def _store_was_set_back(self, batch: ExportBatch, progress: bytes) -> None:
        if progress == CLOSED:
            raise ExportStopped(
                f"the export of queue {batch.queue!r} was taken over, or a rebuild or rebase that this store knows "
                f"nothing of has ended it. {_advice(batch.queue)}"
            )
        raise ExportStopped(
            f"the reporting database ({self.reporting}) has changes of bucket {batch.bucket} of queue {batch.queue!r} "
            f"that this store knows nothing of: the store was set back. {_advice(batch.queue)}"
        )

    # From entries to rows

    def _coalesced(
        self, dialect: Dialect, batch: ExportBatch, progress: bytes
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows to write and the keys to delete: of each key what its last entry says."""
        errors: dict[bytes, str] = {}
        latest: dict[bytes, ExportEntry] = {}
        for entry in reversed(batch.ordered):
            if entry.sequence > progress:
                latest.setdefault(entry.encoded_key, entry)
        rows: dict[tuple[Any, ...], tuple[ExportEntry, dict[str, Any]]] = {}
        layout, now = self.definition.layout, dialect.moment(datetime.now(UTC))
        for entry in reversed(
            latest.values()
        ):  # of different keys with one primary key, too, the last one counts
            try:
                row = key = layout.key_row(dialect, entry.key)
                if entry.value is not None:
                    row = self.definition.row(
                        dialect, entry.key, entry.value, entry.sequence, key_row=key, now=now
                    )
                rows[tuple(key.values())] = entry, row
            except CannotConvert as error:
                errors[entry.sequence] = str(error)
        if errors:
            raise CannotExport(next(iter(errors.values())), errors)
        return (
            [row for entry, row in rows.values() if entry.value is not None],
            [row for entry, row in rows.values() if entry.value is None],
        )


def _advice(queue: str) -> str:
    return (
        f"`cq export rebuild {queue}` exports everything again; "
        f"`cq export rebase {queue}` goes on from here, if both are known to agree"
    )
