"""Counts in PostgreSQL: an upsert in each transaction, and appended rows with a later roll-up.

Each commit is durable. Statements are prepared, arrays are sent in binary format. Keys are sent in the order of their
bytes: so transactions on the same keys wait for each other, but never deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cq.cli.bench.systems.system import Add, Drain, System

if TYPE_CHECKING:
    import psycopg

_COUNTS: Final = "cq_bench_counts"
_LOG: Final = "cq_bench_log"
_NUMBERS: Final = {"int": "bigint", "decimal": "numeric"}
_COPY_FROM: Final = 1_000
"""Number of rows from which COPY is faster than an INSERT of arrays."""


@dataclass(frozen=True)
class _CountTables(System):
    """The table of counts, which both systems use.

    Args:
        conninfo: connection string of the database.
        kind: type of the values.
    """

    conninfo: str
    kind: str
    store = "postgresql"

    @property
    def number(self) -> str:
        """The SQL type of the values."""
        return _NUMBERS[self.kind]

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection in autocommit mode, whose statements are prepared at their first use."""
        import psycopg

        connection = psycopg.connect(self.conninfo, autocommit=True)
        connection.prepare_threshold = 0
        # Batches must not spill to disk, and each commit must be durable, even if the server has other defaults.
        connection.execute("SET work_mem = '64MB'")
        connection.execute("SET synchronous_commit = on")
        return connection

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            # Half of each page stays free: an update then has space on the same page, and need not write to the index.
            connection.execute(
                f'CREATE TABLE {_COUNTS} (key text COLLATE "C" PRIMARY KEY, n {self.number} NOT NULL) '
                "WITH (fillfactor = 50)"
            )

    def total(self) -> Any:
        with self.connect() as connection:
            return connection.execute(f"SELECT coalesce(sum(n), 0) FROM {_COUNTS}").fetchone()[0]  # type: ignore[index]  # noqa: S608

    def vacuum(self, tables: str) -> None:
        """Remove dead rows, which autovacuum would otherwise do during the next measurement."""
        with self.connect() as connection:
            connection.execute(f"VACUUM {tables}")

    def remove(self) -> None:
        with self.connect() as connection:
            connection.execute("SET client_min_messages = warning")  # no notice if the tables do not exist
            connection.execute(f"DROP TABLE IF EXISTS {_COUNTS}, {_LOG}")


class Upsert(_CountTables):
    """Counts by one `INSERT ... ON CONFLICT DO UPDATE` with all keys of a transaction."""

    name = "postgres-upsert"

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        statement = (
            f"INSERT INTO {_COUNTS} AS counts (key, n) "  # noqa: S608
            f"SELECT * FROM unnest(%b::text[], %b::{self.number}[]) "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )
        return partial(_insert, connection, statement)

    def settle(self) -> None:
        self.vacuum(_COUNTS)


class Rollup(_CountTables):
    """Counts by rows in a table without an index, which one later transaction rolls up."""

    name = "postgres-rollup"
    defers: ClassVar[bool] = True

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(
                f'CREATE TABLE {_LOG} (key text COLLATE "C" NOT NULL, n {self.number} NOT NULL)'
            )

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        statement = f"INSERT INTO {_LOG} SELECT * FROM unnest(%b::text[], %b::{self.number}[])"  # noqa: S608
        types = ["text", "int8" if self.number == "bigint" else self.number]

        def add(updates: Mapping[str, Any]) -> None:
            if len(updates) < _COPY_FROM:
                _insert(connection, statement, updates)
                return
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {_LOG} FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.set_types(types)
                for row in updates.items():
                    copy.write_row(row)

        return add

    def drainer(self, stack: ExitStack, place: int, of: int) -> Drain:
        return partial(_roll_up, stack.enter_context(closing(self.connect())), place, of)

    def settle(self) -> None:
        self.vacuum(f"{_COUNTS}, {_LOG}")


def _insert(connection: psycopg.Connection[Any], statement: str, updates: Mapping[str, Any]) -> None:
    """Add all updates of a transaction as two arrays."""
    connection.execute(statement, (list(updates), list(updates.values())), prepare=True)


def _roll_up(connection: psycopg.Connection[Any], place: int, of: int) -> None:
    """Roll up a part of the table's pages: drainers delete different parts, and share only the counts."""
    row = connection.execute(
        f"SELECT pg_relation_size('{_LOG}') / current_setting('block_size')::int"
    ).fetchone()
    assert row is not None  # noqa: S101 - the query always returns a row
    first, last = (row[0] * each // of for each in (place, place + 1))
    # The last part has no end: rows may have been appended since the size was read.
    beyond = "" if place == of - 1 else f"AND ctid < '({last},0)'"
    # One statement has one snapshot: it sums up exactly the rows that it deletes, not rows appended later.
    connection.execute(
        f"WITH gone AS (DELETE FROM {_LOG} WHERE ctid >= '({first},0)' {beyond} RETURNING key, n), "  # noqa: S608
        "sums AS (SELECT key, sum(n) AS n FROM gone GROUP BY key ORDER BY key) "
        f"INSERT INTO {_COUNTS} AS counts (key, n) SELECT key, n FROM sums "
        "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
    )
