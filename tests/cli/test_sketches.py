"""Queues of sketches on the command line, in tops, clouds and tables, and in the browser: numbers, never bytes."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import cq
from cq.cli.web.reads import look_up
from cq.cli.web.text import shown
from cq.combiners import BUILT_IN
from cq.encoding.json_values import update_to_json
from cq.encoding.sketches import Distinct
from cq.store.transact import transact
from cq.tables import to_arrow
from cq.testing import drain
from cq.windows import Window
from tests.cli.conftest import BOTH_STORES, Here
from tests.kit.sketches import needs_sketches

pytestmark = needs_sketches


@pytest.fixture
def visitors(here: Here, db: Any) -> None:
    """The queue `visitors` of distinct counts, with three visitors of one page and one of another."""
    assert here("configure", "visitors", "--combiner", "distinct", "--buckets", "1").status == 0
    assert here("add", "visitors", "home=ann", "home=bob", "home=ann", "home=7", "help=x=y").status == 0
    drain(db)


@BOTH_STORES
@pytest.mark.usefixtures("visitors")
def test_words_are_added_and_numbers_are_printed(here: Here) -> None:
    three, one = ({"estimate": number, "lower": number, "upper": number} for number in (3, 1))

    assert here("configure", "visitors").out == (
        "queue 'visitors': key str, value distinct, combiner distinct@1, buckets 1\n"
    )
    assert here("get", "visitors", "home").out == f"home\t{json.dumps(three)}\n"
    assert here("get", "visitors", "home", "--pending", "--json").rows() == [{"key": "home", "value": three}]
    assert here("get", "visitors", "help=x").out == f"help=x\t{json.dumps(one)}\n"
    items = here("items", "visitors", "--json").rows()
    assert sorted(items, key=lambda item: str(item["key"])) == [
        {"key": "help=x", "value": one},
        {"key": "home", "value": three},
    ]


@BOTH_STORES
def test_lines_of_json_have_items_lists_and_sketches(here: Here, db: Any, tmp_path: Path) -> None:
    here("configure", "visitors", "--combiner", "theta")
    here("configure", "times", "--combiner", "quantiles")
    sketch = BUILT_IN["theta"].combine("key", [["bob", "cai"]])
    updates: list[Any] = ["ann", ["ann", "bob"], update_to_json(sketch)]
    file = tmp_path / "updates.jsonl"
    file.write_text("".join(json.dumps({"key": "home", "update": each}) + "\n" for each in updates))

    assert here("add", "visitors", "--jsonl", str(file)).status == 0
    assert here("add", "times", "home=0.5", "home=3").status == 0
    drain(db)

    assert here("get", "visitors", "home", "--json").rows()[0]["value"]["estimate"] == 3
    assert here("get", "times", "home", "--json").rows()[0]["value"] == {
        "count": 2,
        "p50": 0.5,
        "p90": 3.0,
        "p99": 3.0,
        "minimum": 0.5,
        "maximum": 3.0,
    }
    assert here("add", "times", "home=nan") == (2, "", "cq: expected a value of type quantiles, got: 'nan'\n")


@pytest.mark.usefixtures("visitors")
def test_a_top_is_by_estimate_and_a_table_has_columns_of_numbers(
    here: Here, db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.db"
    monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{report}")
    here("configure", "visitors", "--top", "--export", "visitor_counts")
    for queue, kind in (("times", "quantiles"), ("pages", "frequent")):
        here("configure", queue, "--combiner", kind, "--top", "--export", queue)
        assert here("link", "init", queue).status == 0
    assert here("link", "init", "visitors").status == 0
    here("add", "times", "home=1", "home=2")
    here("add", "pages", "site=/", "site=/a", "site=/")
    assert here("worker", "--drain").status == 0

    assert here("top", "visitors").out == "home\t3\nhelp=x\t1\n"
    assert here("top", "times").out == "home\t2\n"
    assert here("top", "pages").out == "site\t3\n"
    assert [entry["score"] for entry in here("cloud", "visitors", "--json").rows()[0]["entries"]] == [3, 1]
    with closing(sqlite3.connect(report)) as connection:
        found = connection.execute(
            "SELECT key, estimate, lower, upper FROM visitor_counts ORDER BY key"
        ).fetchall()
        assert found == [("help=x", 1, 1, 1), ("home", 3, 3, 3)]
        assert connection.execute("SELECT count, p50, p90, p99 FROM times").fetchall() == [(2, 1.0, 2.0, 2.0)]
        assert connection.execute("SELECT item, count, total FROM pages").fetchall() == [("/", 2, 3)]
    for queue in ("visitors", "times", "pages"):
        assert here("link", "verify", queue).status == 0
        assert here("verify", queue).status == 0


@pytest.mark.usefixtures("visitors")
def test_tables_have_columns_of_numbers(here: Here, db: Any) -> None:
    head, *lines = here("items", "visitors", "--format", "csv").out.splitlines()
    table = to_arrow(db, "visitors")

    assert head == "key,value_estimate,value_lower,value_upper"
    assert sorted(lines) == ["help=x,1,1,1", "home,3,3,3"]
    assert sorted(table.column("value_estimate").to_pylist()) == [1, 3]


@pytest.mark.usefixtures("visitors")
def test_the_dashboard_shows_numbers(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value = look_up(db, "visitors", "home").value

    assert shown(value) == '{"estimate": 3, "lower": 3, "upper": 3}'
    assert shown(Distinct(b"damaged")) == "Distinct(7 bytes)"
    monkeypatch.setitem(sys.modules, "datasketches", None)
    assert (
        shown(value) == "sketches need the package datasketches: run `pip install 'combine-queue[sketches]'`"
    )


@pytest.mark.usefixtures("visitors")
def test_without_the_package_commands_say_what_to_install(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)

    for command in (
        ("get", "visitors", "home"),
        ("items", "visitors"),
        ("get", "visitors", "home", "--pending"),
    ):
        status, out, error = here(*command)
        assert (status, out) == (2, "")
        assert error.startswith("cq: sketches need the package datasketches: run `pip install ")
        assert error.count("\n") == 1


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_top_of_a_period_has_estimates(here: Here, db: Any, form: str) -> None:
    cq.configure(db, "visitors", combiner="distinct", rollup="1h:2d")
    assert here("configure", "visitors.1h", "--top").status == 0
    now = time.time()
    transact(db, lambda tr: Window[str, Any]("visitors").add(tr, {"home": ["ann", "bob"]}, at=now))
    drain(db)

    words = ("top", "visitors", "--by", "1h", "--at", datetime.fromtimestamp(now, UTC).isoformat())
    assert here(*words, "--format", form, "--output", f"top.{form}").status == 0
    if form == "parquet":
        (row,) = parquet.read_table("top.parquet").to_pylist()
        assert row == {"key": "home", "score": 2, "rank": 1, "before": None}
    else:
        row = '{"key": "home", "score": 2, "rank": 1, "before": null}'
        assert Path(f"top.{form}").read_text() == (
            "key,score,rank,before\nhome,2,1,\n" if form == "csv" else f"{row}\n"
        )


@pytest.mark.parametrize("combiner", ["distinct", "theta"])
def test_periods_without_items_have_a_count_of_0(here: Here, combiner: str) -> None:
    assert here("configure", "visitors", "--combiner", combiner, "--rollup", "1m:2d").status == 0
    slots = here("series", "visitors", "home", "--last", "3m", "--json").rows()
    assert {str(slot["value"]) for slot in slots} == {str({"estimate": 0, "lower": 0, "upper": 0})}
    filled = here("series", "visitors", "home", "--last", "3m", "--fill", "x", "--json").rows()
    assert {slot["value"] for slot in filled} == {"x"}


def test_periods_without_numbers_have_no_quantiles(here: Here) -> None:
    assert here("configure", "times", "--combiner", "quantiles", "--rollup", "1m:2d").status == 0
    slots = here("series", "times", "home", "--last", "3m", "--json").rows()
    assert {slot["value"] for slot in slots} == {None}
