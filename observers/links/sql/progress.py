"""cq's own table in the reporting database: the positions of the buckets of each exported table, and its feeder.

cq_progress  name, bucket -> store, queue, link, position    compared in the transaction that applies changes

One link of one store feeds a table: all rows of the table's name have the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cq.config.store_id import STORE_ID_BYTES
from cq.observers.links.log import BUCKETS
from cq.observers.links.sql.dialects.dialect import TABLES_REMEMBERED, Dialect

_NAME_LENGTH: Final = 130
_LINK_LENGTH: Final = 40
_POSITION_LENGTH: Final = 70


class Feeder(NamedTuple):
    """The link, and its store's id, that feeds a table."""

    store: bytes
    queue: str
    link: str


class BucketRow(NamedTuple):
    """A row: the bucket's number, the link that feeds the table, and the bucket's position."""

    bucket: int
    feeder: Feeder
    position: str


@dataclass(frozen=True)
class ProgressTable:
    """The table in one schema, in the types of a dialect. Methods take the name of an exported table in this schema."""

    dialect: Dialect
    table: sa.Table

    @classmethod
    @lru_cache(maxsize=TABLES_REMEMBERED)  # so that SQLAlchemy compiles statements about it once
    def of(cls, dialect: Dialect, schema: str | None) -> ProgressTable:
        """The table of a schema; None: the default one."""
        name = dialect.binary_text(_NAME_LENGTH)
        table = sa.Table(
            "cq_progress",
            sa.MetaData(),
            sa.Column("name", name, primary_key=True),
            sa.Column("bucket", sa.BigInteger(), primary_key=True, autoincrement=False),
            sa.Column("store", dialect.binary(STORE_ID_BYTES), nullable=False),
            sa.Column("queue", name, nullable=False),
            sa.Column("link", dialect.binary_text(_LINK_LENGTH), nullable=False),
            sa.Column("position", dialect.binary_text(_POSITION_LENGTH), nullable=False),
            sa.Column("updated_at", dialect.time(), nullable=False),
            schema=None if schema is None else sa.sql.quoted_name(schema, quote=True),
            **dialect.table_options,
        )
        return cls(dialect, table)

    def rows(
        self, conn: sa.Connection, name: str, buckets: Iterable[int] = range(BUCKETS), *, lock: bool = False
    ) -> list[BucketRow]:
        """Read the rows of some buckets that exist; with `lock`, lock them until the transaction ends."""
        of = self.table.c
        query = sa.select(of.bucket, of.store, of.queue, of.link, of.position)
        # One order for all, so that two transactions that lock all rows cannot deadlock.
        query = query.where(of.name == name, of.bucket.in_(list(buckets))).order_by(of.bucket)
        if lock and self.dialect.locks_rows:
            query = query.with_for_update()
        found = conn.execute(query)
        return [
            BucketRow(row.bucket, Feeder(bytes(row.store), row.queue, row.link), row.position)
            for row in found
        ]

    def insert_missing(self, conn: sa.Connection, name: str, feeder: Feeder) -> None:
        """Insert the missing rows, at the beginning; waits for another transaction that inserts them."""
        # PostgreSQL lets an insert of an existing row wait for the transaction that advances the row.
        missing = set(range(BUCKETS)) - {row.bucket for row in self.rows(conn, name)}
        for bucket in sorted(missing):
            row = {"name": name, "bucket": bucket, **feeder._asdict(), **self._at("")}
            conn.execute(self.dialect.insert_if_missing(self.table, row))

    def advance(self, conn: sa.Connection, name: str, bucket: int, position: str) -> None:
        """Set the position of a bucket whose row is locked."""
        of = self.table.c
        conn.execute(
            sa.update(self.table).where(of.name == name, of.bucket == bucket).values(self._at(position))
        )

    def take(self, conn: sa.Connection, name: str, feeder: Feeder) -> None:
        """Make this link the feeder of the table; waits for transactions that write to it.

        Buckets that another link has fed are at the beginning then.
        """
        self.insert_missing(conn, name, feeder)
        of = self.table.c
        for row in self.rows(conn, name, lock=True):
            if row.feeder != feeder:
                change = sa.update(self.table).where(of.name == name, of.bucket == row.bucket)
                conn.execute(change.values({**feeder._asdict(), **self._at("")}))

    def forget(self, conn: sa.Connection, name: str) -> None:
        """Delete all rows: those of the table, which they are about, are missing."""
        conn.execute(sa.delete(self.table).where(self.table.c.name == name))

    def _at(self, position: str) -> dict[str, Any]:
        return {"position": position, "updated_at": self.dialect.moment(datetime.now(UTC))}
