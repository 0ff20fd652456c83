"""Results of cq's queues in PostgreSQL without extensions: counts by periods, and distinct visitors, each by a job.

As `postgres-rollup`, both append rows to a table without an index, which one later statement reads and deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from cq.cli.bench.systems.postgres import COUNTS, LOG, Rollup
from cq.cli.bench.systems.system import DISTINCT, PERIODS, Add, WrongSum
from cq.cli.bench.systems.workload import with_visitors

_PAIRS: Final = "cq_bench_pairs"
_PERIOD: Final = "cq_bench_period_"


@dataclass(frozen=True)
class Periods(Rollup):
    """Counts of all time and of each period, as a queue with a roll-up has them.

    Args:
        periods: lengths of the periods in seconds, ascending; each is a multiple of the one before.
    """

    periods: Sequence[int]
    name = PERIODS

    def prepare(self) -> None:
        super().prepare()
        with self.connect() as connection:
            connection.execute(
                f"ALTER TABLE {LOG} ADD at bigint NOT NULL DEFAULT date_part('epoch', now())::bigint"
            )
            for table in self._tables():
                connection.execute(
                    f'CREATE TABLE {table} (key text COLLATE "C", start bigint, n {self.number} NOT NULL, '
                    "PRIMARY KEY (key, start)) WITH (fillfactor = 50)"
                )

    def rolling_up(self) -> str:
        sums, inserts, finer, time = "", "", "gone", "at"
        for period, table in zip(self.periods, self._tables(), strict=True):
            # A longer period sums up the shorter ones, which are fewer rows than the log's.
            sums += (
                f", by_{period} AS (SELECT key, {time} / {period} * {period} AS start, sum(n) AS n FROM {finer} "  # noqa: S608
                "GROUP BY 1, 2)"
            )
            inserts += (
                f", into_{period} AS (INSERT INTO {table} AS counts (key, start, n) "  # noqa: S608
                f"SELECT key, start, n FROM by_{period} ORDER BY key, start "
                "ON CONFLICT (key, start) DO UPDATE SET n = counts.n + excluded.n)"
            )
            finer, time = f"by_{period}", "start"
        return (
            f"{sums}{inserts} INSERT INTO {COUNTS} AS counts (key, n) "  # noqa: S608
            f"SELECT key, sum(n) FROM {finer} GROUP BY key ORDER BY key "
            "ON CONFLICT (key) DO UPDATE SET n = counts.n + excluded.n"
        )

    def total(self) -> Any:
        """The sum of all counts; raises `WrongSum` if the counts of periods have another sum."""
        found = super().total()
        for table in self._tables():
            if (by_period := self.sum_of(table)) != found:
                raise WrongSum(
                    f"the counts in {table} have the sum {by_period:,}, those of all time {found:,}"
                )
        return found

    def tables(self) -> list[str]:
        return [*super().tables(), *self._tables()]

    def _tables(self) -> list[str]:
        return [f"{_PERIOD}{period}" for period in self.periods]


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
