"""PostgreSQL as a reporting database."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cq import runtime
from cq.observers.links.sql.dialects.dialect import (
    ANSWER_SECONDS,
    TABLES_REMEMBERED,
    CannotConvert,
    ColumnValues,
    Dialect,
    Row,
    on_conflict_update,
)

_COLLATIONS: Final = sa.text(
    "SELECT a.attname AS column, c.collname AS collation"
    " FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation"
    " JOIN pg_class t ON t.oid = a.attrelid JOIN pg_namespace n ON n.oid = t.relnamespace"
    " WHERE t.relname = :name AND a.attnum > 0 AND NOT a.attisdropped"
    " AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(t.oid) ELSE n.nspname = :schema END"
)
_BEGIN: Final = sa.text(
    "SELECT set_config('lock_timeout', '30s', true), set_config('idle_in_transaction_session_timeout', '60s', true),"
    " CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
    " THEN set_config('synchronous_commit', 'on', true) END"
)
_COPIED_ROWS: Final = 1_000
"""Number of rows from which COPY is used."""
_COPIED_TYPES: Final[Mapping[type, tuple[str, type]]] = {
    postgresql.TEXT: ("text", str),
    postgresql.BYTEA: ("bytea", bytes),
    postgresql.DOUBLE_PRECISION: ("float8", float),
    postgresql.NUMERIC: ("numeric", Decimal),
    postgresql.JSONB: ("jsonb", object),
    postgresql.TIMESTAMP: ("timestamptz", datetime),
    sa.BigInteger: ("int8", int),
    sa.Boolean: ("bool", bool),
}
"""The types of columns that COPY is used for, those of cq's own columns: psycopg's name, and the type of the values."""
# Quotes names for a statement without parameters: a percent sign stays one.
_QUOTED: Final = postgresql.dialect(paramstyle="named").identifier_preparer  # type: ignore[no-untyped-call]
T = TypeVar("T")
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # U+0000 escaped in JSON, but no escaped backslash


class Postgresql(Dialect):
    """PostgreSQL 12 and newer."""

    name = "postgresql"
    # A B-tree index limits an entry, with its overhead, to a third of a page.
    max_key_bytes = 2_600
    _is_looked_up = False
    """Whether to look for existing rows before a COPY, which costs a seventh of it: since a COPY has found one."""

    def binary_text(self, length: int | None) -> sa.types.TypeEngine[Any]:
        return postgresql.TEXT(collation="C")

    def binary(self, length: int | None) -> sa.types.TypeEngine[Any]:
        return postgresql.BYTEA()

    def value_types(self) -> Mapping[str, sa.types.TypeEngine[Any]]:
        return {
            "str": postgresql.TEXT(),
            "bytes": postgresql.BYTEA(),
            "float": postgresql.DOUBLE_PRECISION(),
            "decimal": postgresql.NUMERIC(),
            "json": postgresql.JSONB(),
        }

    def time(self) -> sa.types.TypeEngine[Any]:
        return postgresql.TIMESTAMP(timezone=True)

    def number(self, value: float) -> float:
        return value

    def decimal(self, value: Decimal) -> Any:
        value = super().decimal(value)
        if value.adjusted() >= 131_072 or value.as_tuple().exponent < -16_383:  # type: ignore[operator]
            if value:
                raise CannotConvert("a decimal exceeds the 131,072 and 16,383 digits of a NUMERIC")
            return Decimal(0)
        return value

    def text(self, value: str) -> str:
        if "\x00" in value:
            raise CannotConvert("PostgreSQL's text cannot hold the character U+0000")
        return super().text(value)

    def json(self, plain: Any) -> Any:
        if _NUL.search(json.dumps(plain)):
            raise CannotConvert("PostgreSQL's JSON cannot hold the character U+0000")
        return super().json(plain)

    def collations(self, conn: sa.Connection, table: sa.Table) -> dict[str, str]:
        rows = conn.execute(_COLLATIONS, {"name": table.name, "schema": table.schema})
        return {row.column: "C" if row.collation == "POSIX" else row.collation for row in rows}

    def begin(self, conn: sa.Connection) -> None:
        # A commit must be on disk when it returns, even if the server's default is weaker: the store then clears the
        # entries. The timeouts release the locks of a worker that stalls in its transaction.
        conn.execute(_BEGIN)

    def insert_if_missing(self, table: sa.Table, row: Row) -> sa.Executable:
        return postgresql.insert(table).values(row).on_conflict_do_nothing()

    def upsert(self, conn: sa.Connection, table: sa.Table, columns: ColumnValues, same: Row) -> None:
        # COPY of rows takes about half the time of an upsert, if the table has none of them.
        if conn.dialect.driver == "psycopg" and len(next(iter(columns.values()))) >= _COPIED_ROWS:
            given = {**columns, **{name: [value] for name, value in same.items()}}
            types = [_copied_type(table.columns[name].type, values) for name, values in given.items()]
            is_tried = "" not in types and not (self._is_looked_up and self._has_any(conn, table, columns))
            repeated = {name: repeat(value) for name, value in same.items()}
            if is_tried and self._is_copied(conn, table, types, {**columns, **repeated}):
                return
        arrays = _arrays([table.columns[name] for name in columns], columns)
        conn.execute(_upsert(table, tuple(columns), tuple(same)), {**arrays, **same})

    def _has_any(self, conn: sa.Connection, table: sa.Table, columns: ColumnValues) -> bool:
        """Whether the table has a row with one of the primary keys."""
        return bool(conn.execute(_any(table), _arrays(table.primary_key.columns, columns)).scalar_one())

    def _is_copied(
        self, conn: sa.Connection, table: sa.Table, types: Sequence[str], columns: Mapping[str, Iterable[Any]]
    ) -> bool:
        """Insert rows by COPY; returns False, without a change, if the table has one of them."""
        try:
            with conn.begin_nested():
                _copy(conn, table, types, columns)
        except sa.exc.IntegrityError:
            self._is_looked_up = True
            return False
        return True

    def delete(self, conn: sa.Connection, table: sa.Table, keys: ColumnValues) -> None:
        conn.execute(_delete(table), _arrays(table.primary_key.columns, keys))


@lru_cache(maxsize=TABLES_REMEMBERED)
def _upsert(table: sa.Table, names: Sequence[str], same: Sequence[str]) -> sa.Executable:
    columns = [table.columns[name] for name in names]
    values = list(map(_typed, _unnested(columns).c, columns))
    values += [sa.bindparam(name, type_=table.columns[name].type) for name in same]
    return on_conflict_update(
        postgresql.insert(table).from_select([*names, *same], sa.select(*values)), table
    )


@lru_cache(maxsize=TABLES_REMEMBERED)
def _delete(table: sa.Table) -> sa.Executable:
    columns = list(table.primary_key.columns)
    return sa.delete(table).where(sa.tuple_(*columns).in_(sa.select(*_unnested(columns).c)))


@lru_cache(maxsize=TABLES_REMEMBERED)
def _any(table: sa.Table) -> sa.Executable:
    key = list(table.primary_key.columns)
    given = _unnested(key)
    is_given = [column == value for column, value in zip(key, given.c, strict=True)]
    return sa.select(sa.exists().where(*is_given))


def _copied_type(of: sa.types.TypeEngine[Any], values: Sequence[Any]) -> str:
    """The name of a column's type for COPY; "" if the upsert may convert a value, as of an application's column."""
    name, python = _COPIED_TYPES.get(type(of), ("", object))
    is_converted = python is not object and not set(map(type, values)) <= {python}
    if is_converted or (isinstance(of, postgresql.TIMESTAMP) and not of.timezone):
        return ""
    return name


def _copy(
    conn: sa.Connection, table: sa.Table, types: Sequence[str], columns: Mapping[str, Iterable[Any]]
) -> None:
    """Insert rows, which the table lacks, by psycopg's COPY in binary format."""
    names = ", ".join(map(_QUOTED.quote, columns))
    statement = f"COPY {_QUOTED.format_table(table)} ({names}) FROM STDIN (FORMAT BINARY)"
    connection: Any = conn.connection.driver_connection
    error_type = conn.dialect.loaded_dbapi.Error
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in zip(*columns.values(), strict=False):
                copy.write_row(row)
    except error_type as error:  # as SQLAlchemy raises the errors of its own statements
        raise sa.exc.DBAPIError.instance(
            statement, None, error, error_type, hide_parameters=True, dialect=conn.dialect
        ) from error


def _unnested(columns: Sequence[sa.Column[Any]]) -> Any:
    """A table expression of one array for each column: one prepared statement serves any number of rows."""
    arrays = [
        sa.bindparam(f"p{number}", type_=postgresql.ARRAY(_plain(column.type)))
        for number, column in enumerate(columns)
    ]
    names = [sa.column(f"c{number}", _plain(column.type)) for number, column in enumerate(columns)]
    return sa.func.unnest(*arrays).table_valued(*names, name="given").render_derived()


def _arrays(columns: Iterable[sa.Column[Any]], values: ColumnValues) -> dict[str, list[Any]]:
    return {
        f"p{number}": _encoded(column.type, list(values[column.name]))
        for number, column in enumerate(columns)
    }


class _Bytes(postgresql.BYTEA):
    """Bytes that reach the driver unconverted: drivers accept bytes, and SQLAlchemy's wrapping is slow."""

    def bind_processor(self, dialect: sa.Dialect) -> None:
        return None


def _plain(of: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """The type of an array's elements: without a collation, and text for JSON."""
    if isinstance(of, sa.String | sa.JSON):
        return sa.Text()
    return _Bytes() if isinstance(of, sa.LargeBinary) else of


def _typed(given: Any, column: sa.Column[Any]) -> Any:
    """An element of an array, typed for its column. Only JSON is cast: a cast to VARCHAR(n) would truncate."""
    return sa.cast(given, column.type) if isinstance(column.type, sa.JSON) else given


def _encoded(of: sa.types.TypeEngine[Any], values: list[Any]) -> list[Any]:
    if not isinstance(of, sa.JSON):
        return values
    return [None if value is None else json.dumps(value) for value in values]


def prepare_psycopg(connection: Any, record: object) -> None:
    """Prepare a new connection of psycopg."""
    wait = connection.wait
    connection.wait = lambda steps, *args, **settings: wait(_bounded(connection, steps), *args, **settings)
    # Arrays in PostgreSQL's binary format: text takes several times as long on both sides.
    binary = connection.adapters.get_dumper(list, "b")
    connection.adapters.register_dumper(list, binary)
    # In another zone, times near the years 1 and 9999 are in years that Python does not have: reading them fails.
    connection.autocommit = True
    connection.execute(
        "SELECT set_config('TimeZone', 'UTC', false), set_config('lock_timeout', '30s', false)"
    )
    connection.autocommit = False


def _bounded(connection: Any, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The steps of a call of psycopg; they fail if the server says nothing for `ANSWER_SECONDS`.

    A server whose processes or disk hang still answers TCP's probes, and libpq would wait for ever. psycopg resumes
    the steps several times a second, with 0 if nothing has arrived.
    """
    heard = runtime.monotonic()
    try:
        state = next(steps)
        while True:
            ready = yield state
            now = runtime.monotonic()
            if ready:
                heard = now
            elif now - heard > ANSWER_SECONDS:
                connection.pgconn.finish()  # else a rollback would wait, too
                raise connection.OperationalError(f"the server has not answered for {ANSWER_SECONDS:g} s")
            state = steps.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
