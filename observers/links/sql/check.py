"""Creation of the tables in the reporting database, and checks of existing tables against their definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable

from cq.observers.links.sql.dialects.dialect import Dialect
from cq.observers.links.sql.engine import ReportingDatabase
from cq.observers.links.sql.progress import Feeder, ProgressTable
from cq.observers.links.sql.table import TableDefinition
from cq.observers.links.target import LinkFailed


def create(reporting: ReportingDatabase, definition: TableDefinition) -> list[str]:
    """Create the table and cq's own table if they are missing; returns the names of the created tables.

    If a link has used a table of this name before, creating it stops that link until the operator runs a rebuild.
    Raises `LinkFailed` if an existing table differs from its definition; no table is created.
    """
    with reporting.transaction() as (conn, dialect):
        created = [_shown(table) for table in create_missing(conn, dialect, _tables(dialect, definition))]
        if _shown(definition.table(dialect)) in created:
            # If it existed before, its former rows are missing.
            ProgressTable.of(dialect, definition.schema).forget(conn, definition.name)
    return created


def create_missing(conn: sa.Connection, dialect: Dialect, tables: Iterable[sa.Table]) -> list[sa.Table]:
    """Create the missing tables with their indexes; returns these tables.

    Raises `LinkFailed` if an existing table differs from its definition.
    """
    created = []
    for table in tables:
        if sa.inspect(conn).has_table(table.name, schema=table.schema):
            _raise_differences(conn, dialect, table)
            continue
        conn.execute(CreateTable(table, if_not_exists=True))
        for index in table.indexes:
            conn.execute(CreateIndex(index))
        created.append(table)
    return created


def check(conn: sa.Connection, dialect: Dialect, definition: TableDefinition, feeder: Feeder) -> None:
    """Raise `LinkFailed`, naming the differences, unless all tables exist with the expected columns."""
    for table in _tables(dialect, definition):
        if not sa.inspect(conn).has_table(table.name, schema=table.schema):
            raise LinkFailed(
                f"the reporting database has no table {_shown(table)!r}: run `cq link init {feeder.queue} "
                f"{feeder.link}`"
            )
        _raise_differences(conn, dialect, table)


def _tables(dialect: Dialect, definition: TableDefinition) -> list[sa.Table]:
    return [ProgressTable.of(dialect, definition.schema).table, definition.table(dialect)]


def _raise_differences(conn: sa.Connection, dialect: Dialect, table: sa.Table) -> None:
    """Raise `LinkFailed`, naming the differences, unless an existing table has the columns of its definition."""
    differences = list(_differences(conn, dialect, table))
    if differences:
        raise LinkFailed(
            f"the table {_shown(table)!r} is not as expected: {'; '.join(differences)}; "
            "change it, or link to another table"
        )


def _differences(conn: sa.Connection, dialect: Dialect, table: sa.Table) -> Iterator[str]:
    inspector = sa.inspect(conn)
    found = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
    for column in table.columns:
        if column.name not in found:
            yield f"it has no column {column.name!r}"
            continue
        there = found[column.name]["type"]
        if not _holds(column.type, there):
            yield f"column {column.name!r} is {_type(there, conn)}, expected {_type(column.type, conn)}"
    for name, other in found.items():
        if name not in table.columns and not other["nullable"] and other.get("default") is None:
            yield f"column {name!r} is not cq's, is not nullable and has no default"
    if engine := dialect.engine_without_transactions(conn, table):
        yield f"its engine is {engine}, which has no transactions, expected InnoDB"
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    expected = [column.name for column in table.primary_key.columns]
    if sorted(primary) != sorted(expected):
        yield f"its primary key is ({', '.join(primary)}), expected ({', '.join(expected)})"
    else:
        yield from _collations(conn, dialect, table)


def _holds(expected: sa.types.TypeEngine[Any], found: sa.types.TypeEngine[Any]) -> bool:
    """Whether a column of type `found` can hold all values of type `expected`, as far as the types tell."""
    if isinstance(expected, sa.JSON):
        return isinstance(found, sa.JSON | sa.String)  # MariaDB's JSON is text
    if isinstance(expected, sa.Boolean):
        return isinstance(found, sa.Boolean | sa.Integer)  # MySQL's BOOLEAN is a TINYINT
    if isinstance(expected, sa.Integer):
        wide = isinstance(found, sa.BigInteger) or not isinstance(expected, sa.BigInteger)
        return isinstance(found, sa.Integer) and wide
    if isinstance(expected, sa.Float | sa.Numeric):
        return isinstance(found, sa.Float | sa.Numeric)
    for family in (sa.String, sa.LargeBinary, sa.types._Binary, sa.DateTime):
        if isinstance(expected, family):
            return isinstance(found, family) and _length(found) >= _length(expected)
    return isinstance(found, type(expected)) or isinstance(expected, type(found))


def _length(of: Any) -> float:
    length = getattr(of, "length", None)
    return float("inf") if length is None else float(length)


def _collations(conn: sa.Connection, dialect: Dialect, table: sa.Table) -> Iterator[str]:
    """Differences between the collations of the primary key: by a wrong one, a and A, or e and é, would be equal."""
    expected = {
        column.name: column.type.collation
        for column in table.primary_key.columns
        if isinstance(column.type, sa.String) and column.type.collation is not None
    }
    if not expected:
        return
    found = dialect.collations(conn, table)
    for name, collation in expected.items():
        if name in found and found[name] != collation:
            yield f"column {name!r} has the collation {found[name]}, expected {collation}"


def _type(of: sa.types.TypeEngine[Any], conn: sa.Connection) -> str:
    try:
        return str(of.compile(dialect=conn.dialect))
    except Exception:  # noqa: BLE001 - SQLAlchemy cannot compile a type that it does not know
        return type(of).__name__


def _shown(table: sa.Table) -> str:
    return table.name if table.schema is None else f"{table.schema}.{table.name}"
