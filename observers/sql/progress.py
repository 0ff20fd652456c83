"""cq's own tables in the reporting database: the progress of each bucket, and the queue that feeds each table.

cq_progress  store, queue, epoch, bucket -> sequence   rows are never deleted: a closed one rejects late workers
cq_tables    name -> store, queue                      one queue of one store feeds a table
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cq import runtime
from cq.config.store_id import STORE_ID_BYTES
from cq.keys.export import SEQUENCE_BYTES
from cq.observers.export.batch import CLOSED
from cq.observers.sql.dialects.dialect import TABLES_REMEMBERED, Dialect

_NAME_LENGTH: Final = 130
_CLAIM_BYTES: Final = 8


class Feeder(NamedTuple):
    """The queue, and its store's id, that feeds a table."""

    store: bytes
    queue: str


@dataclass(frozen=True)
class ProgressTables:
    """The two tables in one schema, in the types of a dialect."""

    dialect: Dialect
    progress: sa.Table
    tables: sa.Table

    @classmethod
    @lru_cache(maxsize=TABLES_REMEMBERED)  # so that SQLAlchemy compiles statements about them once
    def of(cls, dialect: Dialect, schema: str | None) -> ProgressTables:
        """The tables of a schema; None: the default one."""
        metadata = sa.MetaData()
        name = dialect.binary_text(_NAME_LENGTH)
        store = dialect.binary(STORE_ID_BYTES)
        quoted = None if schema is None else sa.sql.quoted_name(schema, quote=True)
        progress = sa.Table(
            "cq_progress",
            metadata,
            sa.Column("store", store, primary_key=True),
            sa.Column("queue", name, primary_key=True),
            sa.Column("epoch", sa.BigInteger(), primary_key=True, autoincrement=False),
            sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
            sa.Column("sequence", dialect.binary(SEQUENCE_BYTES), nullable=False),
            sa.Column("updated_at", dialect.time(), nullable=False),
            schema=quoted,
            **dialect.table_options,
        )
        tables = sa.Table(
            "cq_tables",
            metadata,
            sa.Column("name", name, primary_key=True),
            sa.Column("store", store, nullable=False),
            sa.Column("queue", name, nullable=False),
            sa.Column("claim", dialect.binary(_CLAIM_BYTES), nullable=False),
            schema=quoted,
            **dialect.table_options,
        )
        return cls(dialect, progress, tables)

    # Progress

    def locked(self, conn: sa.Connection, feeder: Feeder, epoch: int, bucket: int) -> bytes | None:
        """Read the progress of a bucket and lock its row until the transaction ends; None: no row."""
        found = self._locking(sa.select(self.progress.c.sequence).where(self._at(feeder, epoch, bucket)))
        value = conn.execute(found).scalar_one_or_none()
        return None if value is None else bytes(value)

    def insert_if_missing(
        self, conn: sa.Connection, feeder: Feeder, epoch: int, bucket: int, sequence: bytes = b""
    ) -> None:
        """Insert a bucket's row unless it exists; waits for another transaction that inserts it."""
        row = {
            "store": feeder.store,
            "queue": feeder.queue,
            "epoch": epoch,
            "bucket": bucket,
            "sequence": sequence,
            "updated_at": self._now(),
        }
        conn.execute(self.dialect.insert_if_missing(self.progress, row))

    def advance(self, conn: sa.Connection, feeder: Feeder, epoch: int, bucket: int, sequence: bytes) -> None:
        """Set the progress of a bucket whose row is locked."""
        change = {"sequence": sequence, "updated_at": self._now()}
        conn.execute(sa.update(self.progress).where(self._at(feeder, epoch, bucket)).values(change))

    def all_of(self, conn: sa.Connection, feeder: Feeder) -> dict[tuple[int, int], bytes]:
        """Read {(epoch, bucket): progress} of a queue."""
        table = self.progress
        query = sa.select(table.c.epoch, table.c.bucket, table.c.sequence).where(self._of(feeder))
        return {(epoch, bucket): bytes(sequence) for epoch, bucket, sequence in conn.execute(query)}

    def lock_all(self, conn: sa.Connection, feeder: Feeder) -> None:
        """Lock all progress rows of a queue until the transaction ends."""
        table = self.progress
        # One order for all, so that two transactions that lock all rows cannot deadlock.
        rows = sa.select(table.c.bucket).where(self._of(feeder)).order_by(table.c.epoch, table.c.bucket)
        conn.execute(self._locking(rows)).all()

    def close(self, conn: sa.Connection, feeder: Feeder) -> None:
        """End all epochs of a queue: batches read in them can no longer be applied."""
        change = {"sequence": CLOSED, "updated_at": self._now()}
        conn.execute(sa.update(self.progress).where(self._of(feeder)).values(change))

    # The queues that feed tables

    def claim(self, conn: sa.Connection, name: str, feeder: Feeder) -> tuple[Feeder, bool]:
        """Make this queue the feeder of the table, unless the table has one.

        Returns the table's feeder, and whether this call made it the feeder. Takes no lock if the table has a feeder.
        """
        owner = self.owner(conn, name)
        if owner is not None:
            return owner, False
        claim = runtime.token_bytes(_CLAIM_BYTES)  # drivers do not agree on whether a row was inserted
        row = {"name": name, "store": feeder.store, "queue": feeder.queue, "claim": claim}
        conn.execute(self.dialect.insert_if_missing(self.tables, row))
        columns = self.tables.c
        found = conn.execute(
            self._locking(sa.select(columns.store, columns.queue, columns.claim).where(columns.name == name))
        ).one()
        return Feeder(bytes(found.store), found.queue), bytes(found.claim) == claim

    def owner(self, conn: sa.Connection, name: str, *, hold: bool = False) -> Feeder | None:
        """The table's feeder, or None; with `hold`, `take` in other transactions waits until this one ends."""
        columns = self.tables.c
        query = sa.select(columns.store, columns.queue).where(columns.name == name)
        is_held = hold and self.dialect.hold_table(conn, name, alone=False)
        if hold and not is_held and self.dialect.locks_rows:
            query = query.with_for_update(read=True)
        found = conn.execute(query).one_or_none()
        return None if found is None else Feeder(bytes(found.store), found.queue)

    def take(self, conn: sa.Connection, name: str, feeder: Feeder) -> None:
        """Make this queue the feeder of the table, in place of any other; waits for transactions that write to it."""
        self.dialect.hold_table(conn, name, alone=True)
        self.claim(conn, name, feeder)
        conn.execute(sa.update(self.tables).where(self.tables.c.name == name).values(feeder._asdict()))

    def _at(self, feeder: Feeder, epoch: int, bucket: int) -> Any:
        columns = self.progress.c
        return sa.and_(self._of(feeder), columns.epoch == epoch, columns.bucket == bucket)

    def _of(self, feeder: Feeder) -> Any:
        columns = self.progress.c
        return sa.and_(columns.store == feeder.store, columns.queue == feeder.queue)

    def _locking(self, query: Any) -> Any:
        return query.with_for_update() if self.dialect.locks_rows else query

    def _now(self) -> Any:
        return self.dialect.moment(datetime.now(UTC))
