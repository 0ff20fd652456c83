"""Results of cq's queues in PostgreSQL without extensions: distinct visitors, counted by a job.

As `postgres-rollup`, it appends rows to a table without an index, which one later statement reads and deletes.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from cq.cli.bench.systems.postgres import COUNTS, Rollup
from cq.cli.bench.systems.system import DISTINCT, Add, WrongSum
from cq.cli.bench.systems.workload import with_visitors

_PAIRS: Final = "cq_bench_pairs"


class DistinctPairs(Rollup):
    """Exact numbers of distinct visitors: a table of all pairs of key and visitor, and the count of each key."""

    name = DISTINCT

    @property
    def update_type(self) -> str:
        return "bigint"

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(
                f'CREATE TABLE {_PAIRS} (key text COLLATE "C", visitor bigint, PRIMARY KEY (key, visitor))'
            )

    def adder(self, stack: ExitStack) -> Add:
        add = super().adder(stack)
        return lambda updates: add(with_visitors(updates))

    def rolling_up(self) -> str:
        return (
            f", new AS (INSERT INTO {_PAIRS} SELECT key, n FROM gone ORDER BY key, n "  # noqa: S608
            "ON CONFLICT DO NOTHING RETURNING key) "
            f"INSERT INTO {COUNTS} AS counts (key, n) SELECT key, count(*) FROM new GROUP BY key ORDER BY key "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )

    def total(self) -> Any:
        """The sum of all counts; raises `WrongSum` if it is not the number of pairs."""
        found = super().total()
        with self.connect() as connection:
            row = connection.execute(f"SELECT count(*) FROM {_PAIRS}").fetchone()  # noqa: S608
        if row != (found,):
            raise WrongSum(f"the counts of distinct visitors have the sum {found:,}, there are {row} pairs")
        return found

    def tables(self) -> list[str]:
        return [*super().tables(), _PAIRS]
