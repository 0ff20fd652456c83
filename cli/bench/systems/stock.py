"""Stocks from which requests take pieces unless there are too few: a queue with a decider, and PostgreSQL's best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import cq
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.postgres import PostgresCounts
from cq.cli.bench.systems.system import Add, word
from cq.deciders import bounded
from cq.store.transact import transact

STOCK: Final = 1 << 40
_ANSWER_SECONDS: Final = 120.0
_TABLE: Final = "cq_bench_stock"
_FUNCTION: Final = f"""
CREATE OR REPLACE FUNCTION cq_bench_take(keys text[], ns bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE answers bigint[] := '{{}}'; rest bigint;
BEGIN
  FOR i IN 1 .. cardinality(keys) LOOP
    UPDATE {_TABLE} SET n = n - ns[i] WHERE key = keys[i] AND n >= ns[i] RETURNING n INTO rest;
    answers[i] := CASE WHEN FOUND THEN ns[i] ELSE 0 END;
  END LOOP;
  RETURN answers;
END $$
"""  # noqa: S608


def requests(updates: Mapping[str, int]) -> Iterator[str]:
    """The keys of the requests for one piece each, in order: so transactions in PostgreSQL never deadlock."""
    for key, number in updates.items():
        yield from repeat(key, number)


@dataclass(frozen=True)
class DecidingQueue(QueueSystem):
    """A queue with the decider `bounded`; the state is the number of pieces taken.

    Args:
        waits: whether an adder asks by `ask_now`, which waits for the answer, instead of in its own transaction.
    """

    waits: bool = False

    def prepare(self) -> None:
        cq.configure(self.open(), self.queue, key=str, decider=bounded(0, STOCK), buckets=self.buckets)

    def adder(self, stack: ExitStack) -> Add:
        db, queue = self.open(), cq.CombineQueue[str, int](self.queue)

        def ask_now(updates: Mapping[str, Any]) -> None:
            for key in requests(updates):
                queue.ask_now(db, key, 1, timeout=_ANSWER_SECONDS)

        def ask(updates: Mapping[str, Any]) -> None:
            asked = [(key, 1) for key in requests(updates)]
            transact(db, lambda tr: queue.ask_many(tr, asked))

        return ask_now if self.waits else ask


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
            connection.execute(_FUNCTION)
            with connection.cursor().copy(f"COPY {_TABLE} (key, n) FROM STDIN") as copy:
                for rank in range(self.keys):
                    copy.write_row((word(rank), STOCK))
            connection.execute(f"ANALYZE {_TABLE}")

    def adder(self, stack: ExitStack) -> Add:
        connection = stack.enter_context(closing(self.connect()))
        call = "SELECT cq_bench_take(%b::text[], %b::bigint[])"

        def take(updates: Mapping[str, Any]) -> None:
            keys = list(requests(updates))
            connection.execute(call, (keys, [1] * len(keys)), prepare=True).fetchone()

        return take

    def sums(self) -> Mapping[str, Any]:
        with self.connect() as connection:
            row = connection.execute(f"SELECT sum({STOCK} - n) FROM {_TABLE}").fetchone()  # noqa: S608
            return {f"table {_TABLE}": row[0]}  # type: ignore[index]

    def remove(self) -> None:
        super().remove()
        with self.connect() as connection:
            connection.execute("DROP FUNCTION IF EXISTS cq_bench_take")


def postgres_stock(conninfo: str, keys: int) -> PostgresStock:
    """Stocks of some keys in PostgreSQL."""
    # Half of each page stays free for updates.
    columns = '(key text COLLATE "C" PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)'
    return PostgresStock("postgres-update", conninfo, {_TABLE: columns}, "bigint", keys=keys)
