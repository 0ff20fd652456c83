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

COUNTS: Final = "cq_bench_counts"
"""The table of counts, by key."""
LOG: Final = "cq_bench_log"
"""The table that rows are appended to."""
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
                f'CREATE TABLE {COUNTS} (key text COLLATE "C" PRIMARY KEY, n {self.number} NOT NULL) '
                "WITH (fillfactor = 50)"
            )

    def total(self) -> Any:
        return self.sum_of(COUNTS)

    def sum_of(self, table: str) -> Any:
        """The sum of the numbers in a table."""
        with self.connect() as connection:
            return connection.execute(f"SELECT coalesce(sum(n), 0) FROM {table}").fetchone()[0]  # type: ignore[index]  # noqa: S608

    def tables(self) -> list[str]:
        """The names of the system's tables."""
        return [COUNTS]

    def settle(self) -> None:
        # Remove dead rows, which autovacuum would otherwise do during the next measurement.
        with self.connect() as connection:
            connection.execute(f"VACUUM {', '.join(self.tables())}")

    def remove(self) -> None:
        with self.connect() as connection:
            connection.execute("SET client_min_messages = warning")  # no notice if the tables do not exist
            connection.execute(f"DROP TABLE IF EXISTS {', '.join(self.tables())}")


class Upsert(_CountTables):
    """Counts by one `INSERT ... ON CONFLICT DO UPDATE` with all keys of a transaction."""

    name = "postgres-upsert"

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        statement = (
            f"INSERT INTO {COUNTS} AS counts (key, n) "  # noqa: S608
            f"SELECT * FROM unnest(%b::text[], %b::{self.number}[]) "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )
        return partial(_insert, connection, statement)


class Rollup(_CountTables):
    """Counts by rows in a table without an index, which one later transaction rolls up."""

    name = "postgres-rollup"
    defers: ClassVar[bool] = True

    @property
    def update_type(self) -> str:
        """The SQL type of the updates in the log."""
        return self.number

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(
                f'CREATE TABLE {LOG} (key text COLLATE "C" NOT NULL, n {self.update_type} NOT NULL)'
            )

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        statement = f"INSERT INTO {LOG} (key, n) SELECT * FROM unnest(%b::text[], %b::{self.update_type}[])"  # noqa: S608
        types = ["text", "int8" if self.update_type == "bigint" else self.update_type]

        def add(updates: Mapping[str, Any]) -> None:
            if len(updates) < _COPY_FROM:
                _insert(connection, statement, updates)
                return
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {LOG} (key, n) FROM STDIN (FORMAT BINARY)") as copy,
            ):
                copy.set_types(types)
                for row in updates.items():
                    copy.write_row(row)

        return add

    def drainer(self, stack: ExitStack, place: int, of: int) -> Drain:
        connection = stack.enter_context(closing(self.connect()))

        def drain() -> None:
            # One statement has one snapshot: it sums up exactly the rows that it deletes, not rows appended later.
            gone = f"WITH gone AS (DELETE FROM {LOG} WHERE {_part(connection, place, of)} RETURNING *) "  # noqa: S608
            connection.execute(gone + self.rolling_up())

        return drain

    def rolling_up(self) -> str:
        """The rest of a statement that adds the rows of the query `gone` to the counts."""
        return (
            ", sums AS (SELECT key, sum(n) AS n FROM gone GROUP BY key ORDER BY key) "  # noqa: S608
            f"INSERT INTO {COUNTS} AS counts (key, n) SELECT key, n FROM sums "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )

    def tables(self) -> list[str]:
        return [*super().tables(), LOG]


def _insert(connection: psycopg.Connection[Any], statement: str, updates: Mapping[str, Any]) -> None:
    """Add all updates of a transaction as two arrays."""
    connection.execute(statement, (list(updates), list(updates.values())), prepare=True)


def _part(connection: psycopg.Connection[Any], place: int, of: int) -> str:
    """The condition of a part of the log's pages: drainers delete different parts, and share only the counts."""
    row = connection.execute(
        f"SELECT pg_relation_size('{LOG}') / current_setting('block_size')::int"
    ).fetchone()
    assert row is not None  # noqa: S101 - the query always returns a row
    first, last = (row[0] * each // of for each in (place, place + 1))
    # The last part has no end: rows may have been appended since the size was read.
    beyond = "" if place == of - 1 else f" AND ctid < '({last},0)'"
    return f"ctid >= '({first},0)'{beyond}"
