"""The benchmark's parts: what is drawn, what is computed of it, and that each system counts what it is given."""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.cli.bench.measures.export import measure_export
from cq.cli.bench.measures.measured_system import Adder, BenchCrew, MeasuredSystem, medians, quantile
from cq.cli.bench.report import Report, compare, tables
from cq.cli.bench.systems import postgres
from cq.cli.bench.systems.backends import own_redis
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.postgres import postgres_stock
from cq.cli.bench.systems.redis import RedisHash
from cq.cli.bench.systems.stored import StoredCounts, close_opened
from cq.cli.bench.systems.system import (
    POOL_LEAST,
    POOL_UPDATES,
    Add,
    BenchWorkload,
    Plan,
    System,
    WrongSum,
    word,
)
from cq.cli.shared.processes import ProcessFailed
from tests.kit.sketches import HAS_SKETCHES

rates = st.floats(min_value=1e-3, max_value=1e9)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An embedded store, closed in the end."""
    yield f"embedded:{tmp_path / 'bench.db'}"
    close_opened()


# What is drawn


@given(st.integers(1, 40), st.integers(100, 2_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_transaction_has_as_many_different_keys_as_asked_for_in_order(
    size: int, keys: int, skew: float
) -> None:
    workload = BenchWorkload(size, keys, skew)
    every = {word(rank) for rank in range(keys)}

    pool = workload.draw(1, updates=0)

    assert len(pool) == POOL_LEAST
    for updates in pool:
        assert len(updates) == size
        assert list(updates) == sorted(updates)
        assert set(updates) <= every
        assert sum(updates.values()) == size


class Noted:
    """A system that notes what is added to it."""

    def __init__(self) -> None:
        self.added: list[dict[str, Any]] = []

    def adder(self, stack: ExitStack) -> Add:
        return lambda updates: self.added.append(dict(updates))


@pytest.mark.parametrize("most", [None, POOL_UPDATES // 5])
def test_each_run_of_a_number_of_updates_has_its_own_pool(most: int | None) -> None:
    workload = BenchWorkload(5, 1_000, skew=0)
    noted: Any = Noted()
    with ExitStack() as stack:
        run = Adder(noted, workload, 1, most=most).prepare(stack)
        for _ in range(2):
            updates = run(0.0, math.inf if most else time.monotonic() + 0.2).updates
            assert most is None or updates == POOL_UPDATES
    gc.unfreeze()  # what a process of the benchmark has frozen for good

    pool, added = workload.draw(1), noted.added
    assert added[: len(pool)] == pool[: len(added)]
    assert (added == [pool[place % len(pool)] for place in range(len(added))]) is (most is None)


def test_the_first_word_is_drawn_as_often_as_zipf_says() -> None:
    pool = BenchWorkload(1, 1_000).draw(1, updates=20_000)

    share = sum(word(0) in updates for updates in pool) / len(pool)

    assert share == pytest.approx(1 / sum(1 / rank for rank in range(1, 1_001)), rel=0.1)


@given(st.sets(st.integers(0, (1 << 32) - 1)))
def test_no_two_ranks_share_a_word(ranks: set[int]) -> None:
    assert len({word(rank) for rank in ranks}) == len(ranks)


# Figures


@given(st.lists(rates, min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_values_with_that_share_at_or_below_it(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)

    found = quantile(ordered, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) <= share * len(values)


# Systems


def counted(system: System, transactions: list[dict[str, Any]]) -> set[Any]:
    """What a system that was just made has counted of these, wherever it has counts."""
    system.prepare()
    with ExitStack() as stack:
        add = system.adder(stack)
        for updates in transactions:
            add(updates)
    if system.defers:
        with ExitStack() as stack:
            system.drainer(stack, 0)()
    sums = system.sums()
    system.settle()
    system.remove()
    return set(sums.values())


@pytest.mark.parametrize("size", [3, 1_200])
def test_postgresql_counts_all(conninfo: str, size: int) -> None:
    pool = BenchWorkload(size, 5_000).draw(1, updates=0)[:20]
    systems = [
        postgres.upsert(conninfo),
        postgres.periods(conninfo),
        postgres.periods(conninfo, (60, 3_600)),
        postgres.distinct(conninfo),
    ]

    assert [counted(system, pool) for system in systems] == [{20 * size}] * 4


def test_postgresql_counts_each_period_and_a_visitor_once(conninfo: str) -> None:
    periods, pairs = postgres.periods(conninfo, (60, 3_600)), postgres.distinct(conninfo)
    rows = [("a", 1, 59), ("a", 2, 60), ("b", 3, 3_599), ("a", 4, 3_601), ("a", 1, 59)]
    views = [("a", 7), ("b", 7), ("a", 8), ("a", 7)]
    with ExitStack() as stack, periods.connect() as connection:
        periods.prepare()
        connection.cursor().executemany("INSERT INTO cq_bench_log VALUES (%s, %s, %s)", rows)
        periods.drainer(stack, 0)()
        by_minute, by_hour = (
            connection.execute("SELECT * FROM cq_bench_period_" + period + " ORDER BY 1, 2").fetchall()  # noqa: S608
            for period in ("60", "3600")
        )
        assert set(periods.sums().values()) == {11}
        connection.execute("UPDATE cq_bench_period_60 SET n = n + 1")
        with pytest.raises(WrongSum, match="of 11 updates in table cq_bench_period_60"):
            check(periods, 11)
        periods.remove()
        pairs.prepare()
        drain = pairs.drainer(stack, 0)
        for _ in range(2):
            connection.cursor().executemany("INSERT INTO cq_bench_log VALUES (%s, %s)", views)
            drain()
        distinct = connection.execute("SELECT key, n FROM cq_bench_counts ORDER BY key").fetchall()
        pairs.remove()

    assert by_minute == [("a", 0, 2), ("a", 60, 2), ("a", 3_600, 4), ("b", 3_540, 3)]
    assert by_hour == [("a", 0, 4), ("a", 3_600, 4), ("b", 0, 3)]
    assert distinct == [("a", 2), ("b", 1)]


def test_postgresql_takes_pieces_until_a_stock_is_empty(conninfo: str) -> None:
    system = postgres_stock(conninfo, 3)
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        take = system.adder(stack)
        take({word(0): 2, word(1): 1})
        assert system.sums() == {"table cq_bench_stock": 3}
        with system.connect() as connection:
            connection.execute("UPDATE cq_bench_stock SET n = 3 WHERE key = %s", (word(0),))
            take({word(0): 5})
            assert connection.execute("SELECT min(n) FROM cq_bench_stock").fetchone() == (0,)


def test_the_server_syncs_its_commits(conninfo: str) -> None:
    with postgres.upsert(conninfo).connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)


def test_the_store_counts_all_without_a_queue_and_with_one(url: str, tmp_path: Path) -> None:
    pool = BenchWorkload(3, 50).draw(1, updates=0)[:20]
    reporting = f"sqlite:///{tmp_path / 'reporting.db'}"
    queue = QueueSystem("cq", url, "embedded", "bench-1", 4)
    systems: list[System] = [
        StoredCounts("read-modify-write", url, "embedded"),
        StoredCounts("atomic-add", url, "embedded"),
        queue,
        replace(queue, rollup="1m:1h,1h:forever"),
        *([replace(queue, distinct=True)] if HAS_SKETCHES else []),
        replace(queue, cloud=True, reporting=reporting),
    ]

    for system in systems:
        assert counted(system, pool) == {60}


def test_an_export_and_a_copy_have_the_same_rows(url: str, conninfo: str) -> None:
    queue = QueueSystem("cq+export", url, "embedded", "bench-1", None, reporting=conninfo)

    found = measure_export(queue, conninfo, BenchWorkload(keys=12_000), Plan(1, 1, 1, 0.1, 0.1, 3), print)

    assert (found["system"], found["size"]) == ("cq+export", 12_000)
    assert found["to_copy_repetitions"] == pytest.approx(
        [
            exported / copied
            for exported, copied in zip(
                found["exported_repetitions"], found["copied_repetitions"], strict=True
            )
        ],
        abs=0.001,
    )
    assert len(found["to_copy_repetitions"]) == 3


def test_redis_counts_all(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server in $PATH")
    pool = BenchWorkload(1_200, 5_000).draw(1, updates=0)[:20]
    with own_redis(tmp_path / "redis") as (socket, version):
        assert counted(RedisHash(socket), pool) == {20 * 1_200}
        assert version[0].isdigit()


def check(system: System, updates: int) -> None:
    """The check after each repetition."""
    run = MeasuredSystem(system, Plan(1, 1, 1, 0.1, 0.1, 1), print, BenchCrew("drainer", []))
    run.updates = updates
    run.check()


def test_a_wrong_sum_is_an_error_and_no_figure(url: str) -> None:
    system = StoredCounts("atomic-add", url, "embedded")
    with ExitStack() as stack:
        system.adder(stack)({"a": 1, "b": 1})

    check(system, 2)
    with pytest.raises(WrongSum, match="has counted 2 of 3 updates"):
        check(system, 3)


def test_what_fails_in_a_process_of_the_benchmark_is_said(url: str) -> None:
    system = QueueSystem("cq", url, "embedded", "bench-missing", 4)

    with (
        BenchCrew("adder", [Adder(system, BenchWorkload(1, 10), 1).prepare]) as crew,
        pytest.raises(ProcessFailed, match=r"'adder 1' has failed: .*'bench-missing' is not configured"),
    ):
        crew.run(0.1)


def test_a_process_that_has_died_is_named(url: str) -> None:
    role = Adder(StoredCounts("atomic-add", url, "embedded"), BenchWorkload(1, 10), 1)

    with BenchCrew("adder", [role.prepare]) as crew:
        crew._processes["adder 1"].kill()
        crew._processes["adder 1"].wait()
        with pytest.raises(ProcessFailed, match="exit status -9"):
            crew.run(0.1)


# Reports


def row(system: str, size: int, both: float, drain: float | None = None, workers: int | None = None) -> Any:
    found = {"system": system, "per_transaction": size, "workers": workers}
    return {**found, **medians([{"add": both, "drain": drain, "both": both}])}


def grown(system: str, size: int, cost: float) -> Any:
    figures = medians([{"add_us": 2.0, "drain_us": 2.0, "cost_us": cost}])
    return {"system": system, "what": "keys", "size": size, **figures}


def committed(system: str, callers: int, rate: float) -> Any:
    return {"system": system, "callers": callers, **medians([{"committed": rate}])}


def report(**parts: Any) -> Report:
    speeds = {"added": 60.0, "done": 40.0}
    latencies = [dict.fromkeys(("p50_ms", "p99_ms", "max_ms"), each) for each in (2_000.0, 1_000.0, 3_000.0)]
    live = {
        "system": "cq",
        "per_transaction": 5,
        "workers": 1,
        **medians([{**speeds, **each} for each in latencies]),
    }
    found = {
        "machine": {"cores": 2, "processor": "<&>", "system": "x", "versions": {}},
        "settings": {"repetitions": 3},
        "rows": [row("cq", 5, 50.0, 70.0, 1), row("postgres-upsert", 5, 100.0), row("cq", 100, 1.0, 2.0, 1)],
        "live": [{**live, "rate": rate} for rate in (None, 20.0)],
        "growth": [grown("cq", size, float(size)) for size in (10_000, 100_000)],
        "decisions": [],
        "single_adds": [committed("threads, a transaction each", 32, 2.0), committed("emitter", 1, 8.0)],
        "exports": [
            {"system": "cq+export", "size": 9, **medians([{"exported": 3.0, "copied": 4.0, "to_copy": 0.75}])}
        ],
        **parts,
    }
    compare(found)
    return found


def test_a_table_has_the_figures_of_each_result_under_their_heads() -> None:
    found = {
        table.title: [dict(zip(table.columns, line, strict=True)) for line in table.lines]
        for table in tables(report())
    }

    in_turn, live, exports, growth, single_adds = found.values()
    assert " | ".join(map(" ".join, in_turn[0].items())) == (
        "system cq | per transaction 5 | workers 1 | add 50 | drain 70 | both 50 | spread 0% | cq to it 1.00"
    )
    assert " | ".join(map(" ".join, live[0].items())) == (
        "system cq | per transaction 5 | workers 1 | rate all it can | added 60 | done 40 | "
        "p50 ms 2,000.0 | p99 ms 2,000.0 | max ms 2,000.0"
    )
    assert " | ".join(map(" ".join, exports[0].items())) == (
        "system cq+export | size 9 | exported 3 | copied 4 | to copy 0.75 | spread 0%"
    )
    assert live[1]["rate"] == "20"
    assert " | ".join(map(" ".join, growth[0].items())) == (
        "what keys | system cq | size 10,000 | add us 2.00 | drain us 2.00 | cost us 10,000.00 | spread 0%"
    )
    assert single_adds[1] == {"system": "emitter", "callers": "1", "committed": "8", "spread": "0%"}
