"""The real benchmark, from the command to its figures, with little to do."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from cq.config.queue import queue_names
from cq.store.transact import transact
from tests.cli.commands import LITTLE
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, wait_until
from tests.kit.sketches import needs_sketches


@pytest.mark.sampled(3, among="bench")
def test_a_run_gives_all_its_figures_and_removes_what_it_has_made(cli: Cli, db: Any) -> None:
    own = cli.folder / "own"
    own.mkdir()
    cli.environment["TMPDIR"] = str(own)

    ended = cli.run(
        "bench",
        *LITTLE,
        *("--per-transaction", "5", "--against", "atomic-add"),
        *("--grow", "keys,sparse,backlog", "--grow-to", "200"),
        *("--cloud", "--export", "sqlite", "--json"),
        *("--store", cli.url),
    )

    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["machine"]["cores"] >= 1
    assert {"cq", "python", "sqlite"} <= found["machine"]["versions"].keys()
    assert [row["system"] for row in found["rows"]] == ["cq", "cq+cloud+export", "atomic-add"]
    assert [row["store"] for row in found["rows"]] == ["embedded"] * 3
    for row in found["rows"]:
        assert_adds_up(row)
    assert [(grown["what"], grown["size"], grown["updates"]) for grown in found["growth"]] == [
        ("keys", 200, 400),
        ("sparse", 200, 4_000),
        ("backlog", 200, 200),
    ]
    assert not list(own.glob("cq-bench-*"))
    assert transact(db, queue_names) == []
    assert transact(db, lambda tr: tr.get_range(b"cq bench", b"cq bencj").to_list()) == []


@pytest.mark.sampled(3, among="bench")
def test_many_callers_of_one_process_are_measured(cli: Cli) -> None:
    ended = cli.run(
        *("bench", *LITTLE, "--keys", "100000", "--seconds", "0.4"),
        *("--per-transaction", "none", "--single-adds", "--json"),
    )

    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    callers = [(row["system"], row["callers"]) for row in found["single_adds"]]
    assert callers == [
        *(("threads, a transaction each", 32), ("add_now, threads", 32), ("add_now, tasks", 32)),
        *(("add_now, tasks", 4096), ("emitter", 1)),
        *(("threads, a transaction each", 8), ("an executor of 8 threads", 64), ("cq.aio", 64)),
    ]
    assert min(row["committed"] for row in found["single_adds"]) > 0


@pytest.mark.sampled(3, among="bench")
def test_decisions_and_the_time_to_answer_are_measured(cli: Cli) -> None:
    ended = cli.run("bench", *LITTLE, "--per-transaction", "none", "--decide", "--against", "none", "--json")
    assert (ended.status, ended.err) == (0, "")
    rows = json.loads(ended.out)["decisions"]
    speeds = [
        (system, f"{what}, one by one, {load}")
        for what in ("one key", "keys with a skew of 1.5")
        for system in ("cq", "cq.aio")
        for load in ("full speed", "half speed", "idle")
    ]
    assert [(row["system"], row["what"]) for row in rows] == [
        *(("cq", "one key"), *speeds, ("cq", "keys with a skew of 0"), ("cq", "keys with a skew of 1.5"))
    ]
    timed = [row for row in rows if "one by one" in row["what"]]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in timed)
    assert all(row["cq_to_it"] == 1 for row in rows if row["system"] == "cq")


@pytest.mark.sampled(3, among="bench")
def test_a_queue_is_measured_with_each_number_of_workers_and_other_systems_once(cli: Cli) -> None:
    ended = cli.run(
        "bench",
        *LITTLE,
        *("--per-transaction", "5", "--live", "5", "--workers", "1,2"),
        *("--buckets", "2"),
        *("--against", "atomic-add", "--json"),
    )

    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["settings"]["workers"] == "1,2"
    assert [(row["system"], row["workers"]) for row in found["rows"]] == [
        ("cq", 1),
        ("cq", 2),
        ("atomic-add", None),
    ]
    assert [row["workers"] for row in found["live"]] == [1] * 4 + [2] * 4
    at_full_speed, at_half, at_quarter, idle = found["live"][:4]
    assert at_full_speed["rate"] is None
    assert at_half["rate"] == pytest.approx(at_full_speed["done"] / 2, abs=0.1)
    assert at_quarter["rate"] == pytest.approx(at_full_speed["done"] / 4, abs=0.1)
    assert idle["rate"] == 100
    for slower in (at_half, at_quarter, idle):
        assert 0 < slower["p50_ms"] <= slower["p99_ms"] <= slower["max_ms"]
    for row in found["rows"]:
        assert_adds_up(row)


@pytest.mark.sampled(3, among="bench")
@needs_sketches
def test_a_roll_up_and_distinct_visitors_are_compared_with_the_same_results(cli: Cli) -> None:
    ended = cli.run(
        "bench",
        *LITTLE,
        *("--per-transaction", "5", "--rollup", "1m:1h,1h:forever", "--distinct", "--json"),
        *("--against", "postgres-periods,postgres-distinct"),
    )

    assert (ended.status, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert (found["settings"]["rollup"], found["settings"]["distinct"]) == ("1m:1h,1h:forever", True)
    assert found["machine"]["versions"]["postgresql"]
    both = {row["system"]: row["both"] for row in found["rows"]}
    assert [*both] == ["cq", "cq+rollup", "cq+distinct", "postgres-periods", "postgres-distinct"]
    compared = {row["system"]: row["cq_to_it"] for row in found["rows"]}
    assert compared["postgres-periods"] == pytest.approx(
        both["cq+rollup"] / both["postgres-periods"], rel=1e-3
    )
    assert compared["postgres-distinct"] == pytest.approx(
        both["cq+distinct"] / both["postgres-distinct"], rel=1e-3
    )
    for row in found["rows"]:
        assert_adds_up(row)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--workers", "1,4"), "give --buckets 4"),
        (("--workers", "1,two"), "Invalid value for --workers: expected "),
        (("--rollup", "1m"), "expected a roll-up as PERIOD:RETENTION"),
        (("--rollup", "1m:1d", "--against", "postgres-distinct"), "needs --distinct"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(here: Here, options: tuple[str, ...], why: str) -> None:
    ended = here("bench", *options, *LITTLE)

    assert (ended.status, ended.out) == (2, "")
    assert why in ended.err


def assert_adds_up(row: dict[str, Any]) -> None:
    """The figure of both is made of those of adding and draining."""
    both = row["add"] if row["drain"] is None else 1 / (1 / row["add"] + 1 / row["drain"])
    assert row["both"] == pytest.approx(both, abs=0.01)
    assert row["updates"] % row["per_transaction"] == 0
    assert row["updates"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_ends_it_and_removes_what_it_has_made(cli: Cli, number: int) -> None:
    own = cli.folder / "own"
    own.mkdir()
    cli.environment["TMPDIR"] = str(own)
    process = cli.start("bench", "--against", "none", "--seconds", "1000", start_new_session=True)
    wait_until(psutil.Process(process.pid).children, process)

    process.send_signal(number)

    assert process.wait(SECONDS) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert not list(own.glob("cq-bench-*"))


@pytest.mark.parametrize(
    ("name", "missing", "said"),
    [
        ("postgres-upsert", "psycopg", 'psycopg is not installed: run `pip install "combine-queue[bench]"`'),
        ("redis", "redis", "redis is not installed: run `pip install"),
        ("redis", "", "there is no redis-server in $PATH"),
    ],
)
def test_a_missing_system_that_is_asked_for_is_an_error_that_says_what_to_install(
    here: Here, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, missing: str, said: str
) -> None:
    monkeypatch.setenv("PATH", str(cli.folder))  # there is no Redis server
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)

    ended = here("bench", "--against", name, *LITTLE)

    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"cq: {said}")
