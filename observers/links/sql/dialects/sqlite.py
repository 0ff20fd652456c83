"""SQLite as a reporting database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from cq.observers.links.sql.dialects.dialect import (
    TABLES_REMEMBERED,
    ColumnValues,
    Dialect,
    Row,
    on_conflict_update,
    rows_of,
)

_INDEXES: Final = sa.text("SELECT name, origin FROM pragma_index_list(:name)")
_INDEX_COLLATIONS: Final = sa.text("SELECT name, coll FROM pragma_index_xinfo(:name) WHERE key = 1")


class Sqlite(Dialect):
    """SQLite 3.24 and newer. An exporting transaction begins with `BEGIN IMMEDIATE`, which locks the database."""

    name = "sqlite"
    locks_rows = False

    def binary_text(self, length: int | None) -> sa.types.TypeEngine[Any]:
        return sqlite.TEXT(collation="BINARY")

    def binary(self, length: int | None) -> sa.types.TypeEngine[Any]:
        return sqlite.BLOB()

    def value_types(self) -> Mapping[str, sa.types.TypeEngine[Any]]:
        # Decimals are text: no numeric type of SQLite keeps all their digits.
        text = sqlite.TEXT()
        return {
            "str": text,
            "bytes": sqlite.BLOB(),
            "float": sqlite.REAL(),
            "decimal": text,
            "datetime": text,
            "json": text,
        }

    def time(self) -> sa.types.TypeEngine[Any]:
        return sqlite.TEXT()

    def decimal(self, value: Decimal) -> Any:
        return str(value)

    def moment(self, value: datetime) -> Any:
        return super().moment(value).isoformat(sep=" ", timespec="microseconds")

    def json(self, plain: Any) -> Any:
        return self.text(json.dumps(plain, ensure_ascii=False))

    def collations(self, conn: sa.Connection, table: sa.Table) -> dict[str, str]:
        found: dict[str, str] = {}
        for index in conn.execute(_INDEXES, {"name": table.name}).all():
            if index.origin == "pk":
                rows = conn.execute(_INDEX_COLLATIONS, {"name": index.name})
                found |= {row.name: row.coll for row in rows}
        return found

    def insert_if_missing(self, table: sa.Table, row: Row) -> sa.Executable:
        return sqlite.insert(table).values(row).on_conflict_do_nothing()

    def upsert(self, conn: sa.Connection, table: sa.Table, columns: ColumnValues, same: Row) -> None:
        # The driver runs one prepared statement for each row: faster than one statement with many rows.
        conn.execute(_upsert(table), [{**row, **same} for row in rows_of(columns)])

    def delete(self, conn: sa.Connection, table: sa.Table, keys: ColumnValues) -> None:
        columns = enumerate(table.primary_key.columns)
        conn.execute(_delete(table), rows_of({f"p{number}": keys[column.name] for number, column in columns}))


@lru_cache(maxsize=TABLES_REMEMBERED)
def _upsert(table: sa.Table) -> sa.Executable:
    return on_conflict_update(sqlite.insert(table), table)


@lru_cache(maxsize=TABLES_REMEMBERED)
def _delete(table: sa.Table) -> sa.Executable:
    columns = enumerate(table.primary_key.columns)
    return sa.delete(table).where(*(column == sa.bindparam(f"p{number}") for number, column in columns))
