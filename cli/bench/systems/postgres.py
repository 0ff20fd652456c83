"""Counts in PostgreSQL without extensions: upserts, and appended rows that later transactions combine.

Each commit is durable. Statements are prepared, arrays are sent in binary format. Keys are sent in the order of their
bytes: so transactions on the same keys wait for each other, but never deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cq.cli.bench.systems.system import STOCK, Add, Drain, System, requests, with_visitors, word

if TYPE_CHECKING:
    import psycopg

_COUNTS: Final = "cq_bench_counts"  # by key
_LOG: Final = "cq_bench_log"  # appended rows
_PAIRS: Final = "cq_bench_pairs"  # of key and visitor
_PERIOD: Final = "cq_bench_period_"
_SUMS: Final = {_LOG: None, _PAIRS: "count(*)"}
"""{table: the expression with its number of counted updates}; other tables have counts in a column `n`."""
_COPY_FROM: Final = 1_000
"""Number of rows from which COPY is faster than an INSERT of arrays."""


@dataclass(frozen=True)
class PostgresCounts(System):
    """Counts in tables.

    Args:
        conninfo: connection string of the database.
        tables: {name: its columns and constraints}.
        combining: the rest of a statement that combines the rows of the query `gone`, which were appended to the log;
            "": each transaction updates the counts.
        has_visitors: whether each added number is a new visitor.
    """

    name: str
    conninfo: str
    tables: Mapping[str, str]
    combining: str = ""
    has_visitors: bool = False
    store = "postgresql"

    @property
    def defers(self) -> bool:
        return bool(self.combining)

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
            for name, columns in self.tables.items():
                connection.execute(f"CREATE TABLE {name} {columns}")

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        sent = "SELECT * FROM unnest(%b::text[], %b::bigint[])"
        insert = f"INSERT INTO {_LOG} (key, n) {sent}" if self.defers else _adding(_COUNTS, "key", sent)

        def add(updates: Mapping[str, Any]) -> None:
            if self.has_visitors:
                updates = with_visitors(updates)
            if self.defers and len(updates) >= _COPY_FROM:
                self._copy(connection, updates)
            else:
                connection.execute(insert, (list(updates), list(updates.values())), prepare=True)

        return add

    def _copy(self, connection: psycopg.Connection[Any], updates: Mapping[str, Any]) -> None:
        statement = f"COPY {_LOG} (key, n) FROM STDIN (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["text", "int8"])
            for row in updates.items():
                copy.write_row(row)

    def drainer(self, stack: ExitStack, place: int) -> Drain:
        connection = stack.enter_context(closing(self.connect()))

        def drain() -> None:
            # One statement has one snapshot: it sums up exactly the rows that it deletes, not rows appended later.
            connection.execute(f"WITH gone AS (DELETE FROM {_LOG} RETURNING *){self.combining}")  # noqa: S608

        return drain

    def sums(self) -> Mapping[str, Any]:
        with self.connect() as connection:
            sums = {name: _SUMS.get(name, "coalesce(sum(n), 0)") for name in self.tables}
            return {
                f"table {name}": connection.execute(f"SELECT {each} FROM {name}").fetchone()[0]  # type: ignore[index]  # noqa: S608
                for name, each in sums.items()
                if each
            }

    def settle(self) -> None:
        # Remove dead rows, which autovacuum would otherwise do during the next measurement.
        with self.connect() as connection:
            connection.execute(f"VACUUM {', '.join(self.tables)}")

    def remove(self) -> None:
        with self.connect() as connection:
            connection.execute("SET client_min_messages = warning")  # no notice if the tables do not exist
            connection.execute(f"DROP TABLE IF EXISTS {', '.join(self.tables)}")


def upsert(conninfo: str) -> PostgresCounts:
    """Counts by one `INSERT ... ON CONFLICT DO UPDATE` with all keys of a transaction."""
    return PostgresCounts("postgres-upsert", conninfo, {_COUNTS: _counts()})


def periods(conninfo: str, periods: Sequence[int] = ()) -> PostgresCounts:
    """Counts of all time and of each period, as a queue with a roll-up has them, by one later transaction.

    The periods have lengths in seconds, ascending; each is a multiple of the one before. Without periods, there are
    only the counts of all time.
    """
    at = ", at bigint NOT NULL DEFAULT date_part('epoch', now())::bigint" if periods else ""
    tables = {_COUNTS: _counts(), _LOG: _log(at)}
    sums, inserts, finer, time = "", "", "gone", "at"
    for period in periods:
        table, by = f"{_PERIOD}{period}", f"by_{period}"
        tables[table] = _counts(", start")
        # A longer period sums up the shorter ones, which are fewer rows than the log's.
        start = f"{time} / {period} * {period} AS start"
        sums += f", {by} AS (SELECT key, {start}, sum(n) AS n FROM {finer} GROUP BY 1, 2)"  # noqa: S608
        query = f"SELECT key, start, n FROM {by} ORDER BY key, start"  # noqa: S608
        inserts += f", into_{period} AS ({_adding(table, 'key, start', query)})"
        finer, time = by, "start"
    totals = _adding(_COUNTS, "key", f"SELECT key, sum(n) FROM {finer} GROUP BY key ORDER BY key")  # noqa: S608
    name = "postgres-periods" if periods else "postgres-rollup"
    return PostgresCounts(name, conninfo, tables, f"{sums}{inserts} {totals}")


def distinct(conninfo: str) -> PostgresCounts:
    """Exact numbers of distinct visitors: a table of all pairs of key and visitor, and the count of each key."""
    pairs = '(key text COLLATE "C", visitor bigint, PRIMARY KEY (key, visitor))'
    tables = {_COUNTS: _counts(), _LOG: _log(), _PAIRS: pairs}
    new = f"INSERT INTO {_PAIRS} SELECT key, n FROM gone ORDER BY key, n ON CONFLICT DO NOTHING RETURNING key"  # noqa: S608
    totals = _adding(_COUNTS, "key", "SELECT key, count(*) FROM new GROUP BY key ORDER BY key")
    combining = f", new AS ({new}) {totals}"
    return PostgresCounts("postgres-distinct", conninfo, tables, combining, has_visitors=True)


def _counts(start: str = "") -> str:
    """The columns of counts by key, and by the start of a period if `start` is that column."""
    # Half of each page stays free: an update then has space on the same page, and need not write to the index.
    columns = f'key text COLLATE "C"{start and ", start bigint"}, n bigint NOT NULL'
    return f"({columns}, PRIMARY KEY (key{start})) WITH (fillfactor = 50)"


def _log(at: str = "") -> str:
    return f'(key text COLLATE "C" NOT NULL, n bigint NOT NULL{at})'


def _adding(table: str, key: str, query: str) -> str:
    """The statement that adds the numbers of a query to the counts in a table with this key."""
    added = "DO UPDATE SET n = counts.n + excluded.n"
    return f"INSERT INTO {table} AS counts ({key}, n) {query} ON CONFLICT ({key}) {added}"


# Stocks

_STOCK: Final = "cq_bench_stock"
_TAKE: Final = f"""
CREATE OR REPLACE FUNCTION cq_bench_take(keys text[], ns bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE answers bigint[] := '{{}}'; rest bigint;
BEGIN
  FOR i IN 1 .. cardinality(keys) LOOP
    UPDATE {_STOCK} SET n = n - ns[i] WHERE key = keys[i] AND n >= ns[i] RETURNING n INTO rest;
    answers[i] := CASE WHEN FOUND THEN ns[i] ELSE 0 END;
  END LOOP;
  RETURN answers;
END $$
"""  # noqa: S608


@dataclass(frozen=True)
class PostgresStock(PostgresCounts):
    """Stocks in a table: `UPDATE ... WHERE n >= ... RETURNING` for each request of a transaction, in one round trip.

    Args:
        keys: number of keys.
    """

    keys: int = 1

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(_TAKE)
            with connection.cursor().copy(f"COPY {_STOCK} (key, n) FROM STDIN") as copy:
                for rank in range(self.keys):
                    copy.write_row((word(rank), STOCK))
            connection.execute(f"ANALYZE {_STOCK}")

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        call = "SELECT cq_bench_take(%b::text[], %b::bigint[])"

        def take(updates: Mapping[str, Any]) -> None:
            keys = list(requests(updates))
            connection.execute(call, (keys, [1] * len(keys)), prepare=True).fetchone()

        return take

    def sums(self) -> Mapping[str, Any]:
        with self.connect() as connection:
            row = connection.execute(f"SELECT sum({STOCK} - n) FROM {_STOCK}").fetchone()  # noqa: S608
            return {f"table {_STOCK}": row[0]}  # type: ignore[index]

    def remove(self) -> None:
        super().remove()
        with self.connect() as connection:
            connection.execute("DROP FUNCTION IF EXISTS cq_bench_take")


def postgres_stock(conninfo: str, keys: int) -> PostgresStock:
    """Stocks of some keys in PostgreSQL."""
    # Half of each page stays free for updates.
    columns = '(key text COLLATE "C" PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)'
    return PostgresStock("postgres-update", conninfo, {_STOCK: columns}, keys=keys)
