"""A table of a SQL database as a target, with exactly-once effect.

One SQL transaction locks the position of a bucket, compares it, changes the table's rows, and advances the position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa

from cq.app import App
from cq.config.queue import QueueConfig
from cq.observers.links.log import LinkEntry
from cq.observers.links.sql.check import check, create
from cq.observers.links.sql.dialects.dialect import CannotConvert, ColumnValues, Dialect
from cq.observers.links.sql.engine import ReportingDatabase, values_bound
from cq.observers.links.sql.progress import BucketRow, Feeder, ProgressTable
from cq.observers.links.sql.table import (
    SEQUENCE,
    UPDATED_AT,
    Columns,
    DefaultLayout,
    TableDefinition,
    columns_of,
)
from cq.observers.links.target import (
    CannotSend,
    Changes,
    LinkFailed,
    LinkStopped,
    NotDeclared,
    Source,
    Target,
    refuse_late_sweep,
)

PAGE: Final = 1_000
"""Rows that a scan of a table reads at once."""


def make_target(source: Source, config: QueueConfig, settings: Mapping[str, Any], app: App) -> Target:
    """The table in the settings; raises `NotDeclared` if this process lacks the table's columns."""
    name = settings.get("columns")
    layout: DefaultLayout | Columns = DefaultLayout(config.key, config.value)
    if name is not None:
        declared = app.declared_columns.get(name)
        if not isinstance(declared, Columns):
            raise NotDeclared(
                f"this process has no columns {name!r}: start it with --app and the application that declares them"
            )
        layout = declared
    definition = TableDefinition(settings["table"], layout, settings.get("schema"))
    return SqlTarget(source, ReportingDatabase(env=settings["url_env"]), definition)


class SqlTarget(Target):
    """A table; thread-safe.

    Args:
        source: the link.
        reporting: the reporting database.
        definition: the table.

    Attributes:
        feeder: the link, as cq's table names it.
    """

    batch_entries = 20_000  # a transaction and its commit cost as much as hundreds of rows
    keeps_positions = True

    def __init__(self, source: Source, reporting: ReportingDatabase, definition: TableDefinition) -> None:
        self.reporting = reporting
        self.definition = definition
        self.feeder = Feeder(source.store, source.queue, source.link)
        self._is_prepared = False
        self._preparing = threading.Lock()

    @property
    def noun(self) -> str:  # type: ignore[override]
        return f"the reporting database ({self.reporting})"

    @property
    def width(self) -> int | None:
        """One bucket at a time in a database that writes one transaction after the other."""
        return 1 if self.reporting.serializes_writes else None

    def apply(self, changes: Changes) -> str | None:
        try:
            self._prepare()
            if changes.previous == "":
                self._claim()
            with self.reporting.transaction() as (conn, dialect):
                stored = self._apply(conn, dialect, changes)
                self.signal("applied")
        except CannotSend as error:
            # The database refuses the batch: perhaps not because of its data, but because the table was changed.
            if not error.entries:
                self.check()
            raise
        except Exception:
            self._is_prepared = False  # so that the next batch checks the tables: one may have been dropped
            raise
        self.signal("committed")
        return stored

    def compare(self, changes: Sequence[Changes]) -> list[str | None]:
        with self.reporting.reading() as (conn, dialect):
            found = self._positions(self._progress(dialect).rows(conn, self._table))
        stored = [found.get(each.bucket, "") for each in changes]
        return [None if at == each.previous else at for at, each in zip(stored, changes, strict=True)]

    def check_settings(self) -> str:
        self.reporting.check_url()
        return f"{self.noun} has the table {str(self.definition)!r}"

    def check(self) -> None:
        self._is_prepared = False
        self._prepare()

    def create(self) -> list[str]:
        return create(self.reporting, self.definition)

    def take_over(self) -> None:
        with self.reporting.transaction() as (conn, dialect):
            check(conn, dialect, self.definition, self.feeder)
            self._progress(dialect).take(conn, self._table, self.feeder)

    def newest(self) -> bytes:
        with self.reporting.reading() as (conn, dialect):
            sequence = self.definition.table(dialect).c[SEQUENCE]
            found = conn.execute(sa.select(sequence).order_by(sequence.desc()).limit(1)).scalar_one_or_none()
        return b"" if found is None else bytes(found)

    def sweep(self, epoch: int, below: bytes) -> int:
        """Delete the rows with a sequence below `below`, page by page while the table is in use; returns their number.

        Each deleting transaction checks first that the sweep is not late.
        """
        swept = 0
        for page in pages(self.reporting, self.definition):
            stale = [row for row in page if bytes(row[SEQUENCE]) < below]
            if stale:
                with self.reporting.transaction() as (conn, dialect):
                    rows = self._progress(dialect).rows(conn, self._table, lock=True)
                    refuse_late_sweep(self._positions(rows).values(), epoch, below)
                    swept += _delete(conn, self.definition.table(dialect), stale, below)
        return swept

    def close(self) -> None:
        self.reporting.close()

    def _apply(self, conn: sa.Connection, dialect: Dialect, changes: Changes) -> str | None:
        own = self._progress(dialect)
        found = self._positions(own.rows(conn, self._table, [changes.bucket], lock=True))
        stored = found.get(changes.bucket)
        self.signal("locked")
        if stored is None and changes.previous == "":
            raise LinkFailed("the row of the bucket's position was deleted")
        if stored != changes.previous:
            return stored or ""  # without a row the bucket is at the beginning
        if changes.position == stored:
            return None
        upserts, deletes = self._coalesced(dialect, changes.entries)
        table = self.definition.table(dialect)
        with values_bound():
            if upserts:
                dialect.upsert(conn, table, upserts, {UPDATED_AT: dialect.moment(datetime.now(UTC))})
            if deletes:
                dialect.delete(conn, table, deletes)
        own.advance(conn, self._table, changes.bucket, changes.position)
        return None

    # The table and its feeder

    @property
    def _table(self) -> str:
        """The name of the table in cq's table, which is in the same schema."""
        return self.definition.name

    def _progress(self, dialect: Dialect) -> ProgressTable:
        return ProgressTable.of(dialect, self.definition.schema)

    def _prepare(self) -> None:
        """Check the tables and their feeder, unless this object has done so before."""
        with self._preparing:
            if self._is_prepared:
                return
            with self.reporting.transaction() as (conn, dialect):
                check(conn, dialect, self.definition, self.feeder)
                self._positions(self._progress(dialect).rows(conn, self._table))
            self._is_prepared = True

    def _claim(self) -> None:
        """Become the feeder of a table that has none, and insert the missing rows of the buckets' positions.

        This has a transaction of its own, so that its locks do not last while changes are applied: a stalled worker
        then blocks no other bucket.
        """
        # One thread at a time: those of all buckets begin together, and in MySQL their inserts could deadlock.
        with self._preparing, self.reporting.transaction() as (conn, dialect):
            own = self._progress(dialect)
            # In this order: a link writes rows only after it has claimed the table.
            anything = sa.select(sa.literal(1)).select_from(self.definition.table(dialect)).limit(1)
            has_rows = conn.execute(anything).first() is not None
            if has_rows and not own.rows(conn, self._table):
                raise LinkStopped(
                    f"the table {str(self.definition)!r} has rows already, which queue {self.feeder.queue!r} did not "
                    "write: empty it, link to another table, or take it over by a rebuild"
                )
            own.insert_missing(conn, self._table, self.feeder)
            self._positions(own.rows(conn, self._table))

    def _positions(self, rows: Iterable[BucketRow]) -> dict[int, str]:
        """{bucket: position} in these rows; raises `LinkStopped` if another link feeds the table."""
        found = {}
        for bucket, feeder, position in rows:
            if feeder != self.feeder:
                of = (
                    "this store"
                    if feeder.store == self.feeder.store
                    else "another store (or of a former store in its place)"
                )
                raise LinkStopped(
                    f"the table {str(self.definition)!r} is fed by the link {feeder.link!r} of queue {feeder.queue!r} "
                    f"of {of}: link to another table, or take it over by a rebuild"
                )
            found[bucket] = position
        return found

    # From entries to rows

    def _coalesced(self, dialect: Dialect, entries: Sequence[LinkEntry]) -> tuple[ColumnValues, ColumnValues]:
        """The columns of the rows to upsert and of the keys to delete, by the last entry of each key."""
        latest = {entry.encoded_key: entry for entry in entries}
        # In ascending order: if different keys have the same primary key, the latest entry wins, too.
        ordered = sorted(latest.values(), key=attrgetter("sequence"))
        try:
            return self.definition.columns(dialect, ordered)
        except CannotConvert as error:
            raise CannotSend(str(error), self._refused(dialect, ordered)) from None

    def _refused(self, dialect: Dialect, entries: Sequence[LinkEntry]) -> dict[bytes, str]:
        """{sequence: error} of the entries that cannot be converted."""
        errors = {}
        for entry in entries:
            try:
                self.definition.columns(dialect, [entry])
            except CannotConvert as error:
                errors[entry.sequence] = str(error)
        return errors


def pages(reporting: ReportingDatabase, definition: TableDefinition) -> Iterator[list[dict[str, Any]]]:
    """Read primary key and sequence of all rows, in key order, in pages of a transaction each."""
    last: tuple[Any, ...] | None = None
    while True:
        with reporting.reading() as (conn, dialect):
            table = definition.table(dialect)
            key = list(table.primary_key.columns)
            query = sa.select(*key, table.c[SEQUENCE]).order_by(*key).limit(PAGE)
            if last is not None:
                query = query.where(_sorts_after(key, last))
            rows = [dict(row) for row in conn.execute(query).mappings()]
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        last = columns_of(rows[-1], [column.name for column in key])


def _delete(conn: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], below: bytes) -> int:
    key = list(table.primary_key.columns)
    names = [column.name for column in key]
    given = [sa.bindparam(f"p{number}", type_=column.type) for number, column in enumerate(key)]
    # A row written since the page was read has a higher sequence: compare again, so that it remains.
    where = [column == parameter for column, parameter in zip(key, given, strict=True)]
    where.append(table.c[SEQUENCE] < sa.bindparam("below", below))
    parameters = [
        {f"p{number}": value for number, value in enumerate(columns_of(row, names))} | {"below": below}
        for row in rows
    ]
    return conn.execute(sa.delete(table).where(*where), parameters).rowcount


def _sorts_after(key: list[sa.Column[Any]], last: tuple[Any, ...]) -> Any:
    """The condition that a row sorts after the primary key `last`."""
    if len(key) == 1:
        return key[0] > last[0]
    given = [sa.bindparam(None, value, type_=column.type) for column, value in zip(key, last, strict=True)]
    return sa.tuple_(*key) > sa.tuple_(*given)
