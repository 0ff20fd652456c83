"""Sweep: deletes the rows that a new generation has not written. And a scan of a table in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import sqlalchemy as sa

from cq.observers.links.sql.dialects.dialect import Dialect
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.sql.table import SEQUENCE, TableDefinition, columns_of

PAGE: Final = 1_000

Hold = Callable[[sa.Connection, Dialect], object]


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


def sweep(reporting: ReportingDatabase, definition: TableDefinition, below: bytes, hold: Hold) -> int:
    """Delete the rows with a sequence below `below`, page by page while the table is in use; returns their number.

    `hold` is called first in each deleting transaction; it raises if the sweep must not delete rows.
    """
    swept = 0
    for rows in pages(reporting, definition):
        stale = [row for row in rows if bytes(row[SEQUENCE]) < below]
        if stale:
            with reporting.transaction() as (conn, dialect):
                hold(conn, dialect)
                swept += _delete(conn, definition.table(dialect), stale, below)
    return swept


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
