"""Counts in PostgreSQL: an upsert in each transaction, and appending rows that are rolled up later.

Both are durable with each commit. Statements are prepared, arrays go over as binary, and keys go in the order of their
bytes, so that transactions that meet wait for each other but never deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cq.observers.bench.system import Drainer

if TYPE_CHECKING:
    import psycopg

_COUNTS: Final = "cq_bench_counts"
_LOG: Final = "cq_bench_log"
_NUMBERS: Final = {"int": "bigint", "decimal": "numeric"}
_COPY_FROM: Final = 1_000
"""From so many rows on, COPY is faster than an INSERT of arrays."""


@dataclass(frozen=True)
class _CountTables:
    """What both have in common.

    Args:
        conninfo: of the database.
        kind: of the values.
    """

    conninfo: str
    kind: str
    store: ClassVar[str] = "postgresql"

    @property
    def number(self) -> str:
        """SQL's type of the values."""
        return _NUMBERS[self.kind]

    def connect(self) -> psycopg.Connection[Any]:
        """A connection whose statements are transactions of their own, and prepared at once."""
        import psycopg

        connection = psycopg.connect(self.conninfo, autocommit=True)
        connection.prepare_threshold = 0
        # An idle moment must not cost the statements their plans, nor large batches their memory.
        connection.execute("SET work_mem = '64MB'")
        connection.execute("SET synchronous_commit = on")
        return connection

    def prepare(self) -> None:
        self.remove()
        with self.connect() as connection:
            # Half of each page is left free: an update then finds room beside the row, and touches no index.
            connection.execute(
                f'CREATE TABLE {_COUNTS} (key text COLLATE "C" PRIMARY KEY, n {self.number} NOT NULL) '
                "WITH (fillfactor = 50)"
            )

    def total(self) -> Any:
        with self.connect() as connection:
            return connection.execute(f"SELECT coalesce(sum(n), 0) FROM {_COUNTS}").fetchone()[0]  # type: ignore[index]  # noqa: S608

    def settle(self) -> None:
        with self.connect() as connection:
            connection.execute(f"VACUUM {_COUNTS}")

    def remove(self) -> None:
        with self.connect() as connection:
            connection.execute("SET client_min_messages = warning")  # that there was none
            connection.execute(f"DROP TABLE IF EXISTS {_COUNTS}, {_LOG}")


class Upsert(_CountTables):
    """`INSERT ... ON CONFLICT DO UPDATE` of all keys of a transaction in one statement."""

    name = "postgres-upsert"
    defers: ClassVar[bool] = False

    def adder(self) -> ArrayAdder:
        return ArrayAdder(
            self.connect(),
            f"INSERT INTO {_COUNTS} AS counts (key, n) "  # noqa: S608
            f"SELECT * FROM unnest(%b::text[], %b::{self.number}[]) "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n",
        )

    def drainer(self, place: int, of: int) -> Drainer:
        raise NotImplementedError


class Rollup(_CountTables):
    """Append rows to a table without any index; roll it up into the counts later, in one transaction."""

    name = "postgres-rollup"
    defers: ClassVar[bool] = True

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(
                f'CREATE TABLE {_LOG} (key text COLLATE "C" NOT NULL, n {self.number} NOT NULL)'
            )

    def adder(self) -> RowAdder:
        statement = f"INSERT INTO {_LOG} SELECT * FROM unnest(%b::text[], %b::{self.number}[])"  # noqa: S608
        return RowAdder(self.connect(), statement, self.number)

    def drainer(self, place: int, of: int) -> RollupDrainer:
        return RollupDrainer(self.connect(), place, of)

    def settle(self) -> None:
        super().settle()
        with self.connect() as connection:
            connection.execute(f"VACUUM {_LOG}")


class ArrayAdder:
    """Sends all updates of a transaction as two arrays."""

    def __init__(self, connection: psycopg.Connection[Any], statement: str) -> None:
        self._connection, self._statement = connection, statement

    def add(self, updates: Mapping[str, Any]) -> None:
        self._connection.execute(self._statement, (list(updates), list(updates.values())), prepare=True)

    def close(self) -> None:
        self._connection.close()


class RowAdder(ArrayAdder):
    """As `ArrayAdder`, but copies when there are many."""

    def __init__(self, connection: psycopg.Connection[Any], statement: str, number: str) -> None:
        super().__init__(connection, statement)
        self._types = ["text", "int8" if number == "bigint" else number]

    def add(self, updates: Mapping[str, Any]) -> None:
        if len(updates) < _COPY_FROM:
            super().add(updates)
            return
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY {_LOG} FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(self._types)
            for row in updates.items():
                copy.write_row(row)


class RollupDrainer:
    """Rolls up its part of the table's pages: parts are deleted side by side, and meet only at the counts."""

    def __init__(self, connection: psycopg.Connection[Any], place: int, of: int) -> None:
        self._connection, self._place, self._of = connection, place, of

    def drain(self) -> None:
        row = self._connection.execute(
            f"SELECT pg_relation_size('{_LOG}') / current_setting('block_size')::int"
        ).fetchone()
        assert row is not None  # noqa: S101 - it is an aggregate
        pages = row[0]
        first, last = (pages * place // self._of for place in (self._place, self._place + 1))
        beyond = "" if self._place == self._of - 1 else f"AND ctid < '({last},0)'"
        # One statement sees one snapshot: what it sums up is what it deletes, whatever is appended meanwhile.
        self._connection.execute(
            f"WITH gone AS (DELETE FROM {_LOG} WHERE ctid >= '({first},0)' {beyond} RETURNING key, n), "  # noqa: S608
            "sums AS (SELECT key, sum(n) AS n FROM gone GROUP BY key ORDER BY key) "
            f"INSERT INTO {_COUNTS} AS counts (key, n) SELECT key, n FROM sums "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )

    def close(self) -> None:
        self._connection.close()
