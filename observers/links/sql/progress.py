"""cq's own tables in the reporting database: the position of each bucket, and the link that feeds each table.

cq_progress  store, queue, link, bucket -> position    compared in the transaction that applies changes
cq_tables    name -> store, queue, link                one link of one store feeds a table
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cq.config.store_id import STORE_ID_BYTES
from cq.observers.links.sql.dialects.dialect import TABLES_REMEMBERED, Dialect

_NAME_LENGTH: Final = 130
_LINK_LENGTH: Final = 40
_POSITION_LENGTH: Final = 70


class Feeder(NamedTuple):
    """The link, and its store's id, that feeds a table."""

    store: bytes
    queue: str
    link: str


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
            sa.Column("link", dialect.binary_text(_LINK_LENGTH), primary_key=True),
            sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
            sa.Column("position", dialect.binary_text(_POSITION_LENGTH), nullable=False),
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
            sa.Column("link", dialect.binary_text(_LINK_LENGTH), nullable=False),
            schema=quoted,
            **dialect.table_options,
        )
        return cls(dialect, progress, tables)

    # Positions

    def locked(self, conn: sa.Connection, feeder: Feeder, bucket: int) -> str | None:
        """Read the position of a bucket and lock its row until the transaction ends; None: no row."""
        query = sa.select(self.progress.c.position).where(self._at(feeder, bucket))
        found: str | None = conn.execute(self._locking(query)).scalar_one_or_none()
        return found

    def insert_if_missing(self, conn: sa.Connection, feeder: Feeder, bucket: int) -> None:
        """Insert a bucket's row unless it exists; waits for another transaction that inserts it."""
        row = {**feeder._asdict(), "bucket": bucket, "position": "", "updated_at": self._now()}
        conn.execute(self.dialect.insert_if_missing(self.progress, row))

    def advance(self, conn: sa.Connection, feeder: Feeder, bucket: int, position: str) -> None:
        """Set the position of a bucket whose row is locked."""
        change = {"position": position, "updated_at": self._now()}
        conn.execute(sa.update(self.progress).where(self._at(feeder, bucket)).values(change))

    def positions(self, conn: sa.Connection, feeder: Feeder, *, lock: bool = False) -> dict[int, str]:
        """Read {bucket: position} of a link; with `lock`, lock their rows until the transaction ends."""
        table = self.progress.c
        # One order for all, so that two transactions that lock all rows cannot deadlock.
        query = sa.select(table.bucket, table.position).where(self._of(feeder)).order_by(table.bucket)
        return {row.bucket: row.position for row in conn.execute(self._locking(query) if lock else query)}

    def forget(self, conn: sa.Connection, feeder: Feeder) -> None:
        """Delete the positions of a link: the rows that it wrote are missing."""
        conn.execute(sa.delete(self.progress).where(self._of(feeder)))

    # The links that feed tables

    def claim(self, conn: sa.Connection, name: str, feeder: Feeder) -> None:
        """Make this link the feeder of the table, unless the table has one; waits for another claim."""
        conn.execute(self.dialect.insert_if_missing(self.tables, {"name": name, **feeder._asdict()}))

    def owner(self, conn: sa.Connection, name: str, *, hold: bool = False) -> Feeder | None:
        """The table's feeder, or None; with `hold`, `take` in other transactions waits until this one ends."""
        columns = self.tables.c
        query = sa.select(columns.store, columns.queue, columns.link).where(columns.name == name)
        is_held = hold and self.dialect.hold_table(conn, name, alone=False)
        if hold and not is_held and self.dialect.locks_rows:
            query = query.with_for_update(read=True)
        found = conn.execute(query).one_or_none()
        return None if found is None else Feeder(bytes(found.store), found.queue, found.link)

    def take(self, conn: sa.Connection, name: str, feeder: Feeder) -> None:
        """Make this link the feeder of the table, in place of any other; waits for transactions that write to it."""
        self.dialect.hold_table(conn, name, alone=True)
        self.claim(conn, name, feeder)
        conn.execute(sa.update(self.tables).where(self.tables.c.name == name).values(feeder._asdict()))

    def _at(self, feeder: Feeder, bucket: int) -> Any:
        return sa.and_(self._of(feeder), self.progress.c.bucket == bucket)

    def _of(self, feeder: Feeder) -> Any:
        return sa.and_(*(self.progress.c[name] == part for name, part in feeder._asdict().items()))

    def _locking(self, query: Any) -> Any:
        return query.with_for_update() if self.dialect.locks_rows else query

    def _now(self) -> Any:
        return self.dialect.moment(datetime.now(UTC))
