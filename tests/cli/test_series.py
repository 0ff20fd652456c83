"""`cq configure --rollup`, `cq series` and `cq top --by`, and charts of lines: gaps, round ticks, and dates."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow import parquet

from cq.cli.shared.chart import line_chart
from tests.cli.conftest import BOTH_STORES, Cli, Here
from tests.cli.terminal import Terminal, plain
from tests.kit.sketches import needs_sketches

LEVELS = "1m:2d,1h:60d,1d:forever"


@pytest.fixture
def hits(here: Here) -> int:
    """A queue with values of two pages in two hours; returns the start of the present hour at its configuration."""
    assert here("configure", "hits", "--rollup", LEVELS).status == 0
    hour = int(time.time()) // 3600 * 3600
    lines = [
        ("/a", 5, hour),
        ("/b", 7, hour),
        ("/a", 3, hour - 3600),
        ("/b", 1, hour - 3600),
        ("/c", 1, hour),
    ]
    path = "hits.jsonl"
    with open(path, "w") as file:
        file.writelines(
            json.dumps({"key": key, "update": update, "at": at}) + "\n" for key, update, at in lines
        )
    assert here("add", "hits", "--jsonl", path).status == 0
    assert here("worker", "hits", "--drain").status == 0
    return hour


@BOTH_STORES
def test_a_series_is_printed_in_every_format(here: Here, hits: int) -> None:
    rows = here("series", "hits", "/a", "--last", "3h", "--by", "1h", "--fill", "0", "--json").rows()
    values = {row["start"]: row["value"] for row in rows}
    first, second = (datetime.fromtimestamp(each, UTC) for each in (hits - 3600, hits))
    assert values[first.isoformat()] == 3
    assert values[second.isoformat()] == 5
    assert sum(values.values()) == 8
    table = here("series", "hits", "/a", "/b", "--last", "3h", "--by", "1h", "--format", "csv").out
    assert f"/b,{second.isoformat()},7" in table.splitlines()
    ended = here(
        "series", "hits", "/a", "--last", "3h", "--by", "1h", "--format", "parquet", "--output", "a.parquet"
    )
    assert ended.status == 0
    found = parquet.read_table("a.parquet").to_pylist()
    assert {"key": "/a", "start": second, "value": 5} in found
    assert {row["value"] for row in found} == {None, 3, 5}
    assert here("series", "hits", "/a", "/b", "--last", "3h", "--merged").out == "/a\t8\n/b\t8\n"
    assert here("series", "hits", "/x", "--merged").status == 3


def test_a_series_on_a_terminal_is_a_table_with_charts(cli: Cli, hits: int) -> None:
    with Terminal(cli, "series", "hits", "/a", "--last", "3h", "--by", "1h") as terminal:
        lines = plain(terminal.output()).splitlines()
    start = f"{datetime.fromtimestamp(hits, UTC):%Y-%m-%d %H:%M:%S}"
    assert any(line.split() == [*start.split(), "5"] for line in lines)
    assert any("█" in line and line.rstrip().endswith("  /a") for line in lines)


@BOTH_STORES
def test_a_top_by_periods_has_the_ranks_before(here: Here, hits: int) -> None:
    assert "no top" in here("top", "hits", "--by", "1h").err
    assert here("configure", "hits.1h", "--top").status == 0
    assert here("worker", "hits", "--drain").status == 0
    at = datetime.fromtimestamp(hits, UTC).isoformat()
    assert here("top", "hits", "--by", "1h", "--at", at).out == "/b\t7\t1\t2\n/a\t5\t2\t1\n/c\t1\t3\t-\n"
    assert here("top", "hits", "--by", "1h", "--at", at, "-n", "1", "--json").rows() == [
        {"key": "/b", "score": 7, "rank": 1, "before": 2}
    ]
    before = datetime.fromtimestamp(hits - 3600, UTC).replace(tzinfo=None).isoformat()
    assert here("top", "hits", "--by", "1h", "--at", before).out == "/a\t3\t1\t-\n/b\t1\t2\t-\n"
    assert here("verify", "hits.1h").status == 0
    assert here("verify", "hits.1m").status == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["top", "hits", "--by", "2h"], "has no level of 2h: its roll-up is"),
        (["top", "hits", "--by", "1h", "--at", "noon"], "expected a time"),
        (["top", "hits", "--at", "2026-01-01"], "add --by"),
        (["top", "hits", "--by", "1h", "--bottom"], "either --by or"),
        (["series", "hits", "/a", "--last", "9d", "--by", "1m"], "has no slots of 1m over 9d"),
        (["series", "hits", "/a", "--merged", "--fill", "0"], "either --merged or"),
        (["add", "hits.1m", '["/a", 60]=1'], "add to queue 'hits'"),
        (["configure", "hits", "--rollup", LEVELS, "--no-rollup"], "either --rollup or --no-rollup"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(here: Here, words: list[str], message: str) -> None:
    assert here("configure", "hits", "--rollup", LEVELS).status == 0
    ended = here(*words)
    assert ended.status in (1, 2)
    assert message in " ".join(ended.err.split())
    assert "Traceback" not in ended.err


@BOTH_STORES
def test_a_roll_up_can_be_removed(here: Here) -> None:
    assert LEVELS in here("configure", "hits", "--rollup", LEVELS).out
    assert here("configure", "hits", "--no-rollup", "--json").rows()[0]["rollup"] is None
    assert "has no roll-up" in here("series", "hits", "/a").err


def test_commands_for_a_queue_include_its_levels(here: Here) -> None:
    here("configure", "hits", "--rollup", LEVELS, "--window", "600/10")
    levels = ["hits.1m", "hits.1h", "hits.1d", "hits.slices", "hits.window"]
    together = f"together with its levels {', '.join(levels)}"
    assert here("pause", "hits").out == f"queue 'hits' is paused, {together}\n"
    assert here("resume", "hits.1h", "--json").rows() == [{"queue": "hits.1h", "paused": False, "levels": []}]
    here("resume", "hits")
    here("add", "hits", "/a=1")
    assert here("pause", "hits.1h").out == "queue 'hits.1h' is paused\n"
    waited = here("drain", "hits")
    assert waited.status == 1
    assert "queue 'hits.1h' is paused (by hand): run `cq resume hits`" in waited.err
    assert here("resume", "hits", "--json").rows() == [{"queue": "hits", "paused": False, "levels": levels}]
    assert here("worker", "hits", "--drain").status == 0
    assert here("drain", "hits").out == f"queue 'hits' is drained, {together}\n"
    assert here("limit", "hits", "--max-bytes", "1000").out == here("limit", "hits").out
    assert here("limit", "hits").out == f"queue 'hits': 1,000 bytes, then raise, {together}\n"
    refused = here("limit", "hits.1h", "--max-bytes", "1000")
    assert refused.status == 2
    assert "limit queue 'hits', which includes it" in refused.err
    assert here("rebucket", "hits", "--buckets", "2", "--no-wait").out == (
        f"queue 'hits' has 2 buckets, {together}: workers drain the former ones\n"
    )
    assert here("worker", "hits", "--drain").status == 0
    assert here("purge", "hits", "--yes", "--no-wait").out == f"queue 'hits' is being purged, {together}\n"
    assert here("delete", "hits", "--yes").out == f"queue 'hits' is deleted, {together}\n"


def test_status_shows_queues_first_and_levels_that_need_attention(here: Here, cli: Cli) -> None:
    for name in ("hits", "likes"):
        here("configure", name, "--rollup", "1m:2d,1h:60d")
    groups = ["hits", "hits.1m", "hits.1h", "likes", "likes.1m", "likes.1h"]
    rows = here("status", "--json").rows()[:-1]
    assert [row["name"] for row in rows] == groups
    assert (rows[0]["levels"], rows[0]["level_of"]) == (["hits.1m", "hits.1h"], None)
    assert (rows[1]["levels"], rows[1]["level_of"]) == ([], "hits")
    assert [line.split()[0] for line in here("status").out.splitlines()[1:7]] == groups
    assert [row["name"] for row in here("status", "likes", "--json").rows()[:-1]] == groups[3:]
    history = here("status", "--history", "--json").rows()
    assert [row["name"] for row in history] == groups
    assert [row["level_of"] for row in history] == [None, "hits", "hits", None, "likes", "likes"]
    assert [row["name"] for row in here("status", "likes", "--history", "--json").rows()] == groups[3:]
    here("pause", "hits")
    here("pause", "likes.1h")
    lines = here("status").out.splitlines()
    assert sum("paused until" in line for line in lines) == 2  # one for hits with its levels
    with Terminal(cli, "status", size=(100, 40)) as terminal:
        shown = plain(terminal.output()).splitlines()
    first = [line.split()[0] for line in shown if line.strip()]
    assert [each for each in first if each in groups] == ["hits", "likes", "likes.1h"]
    assert any("3 levels without warnings hidden: `cq status --wide` shows all" in line for line in shown)
    with Terminal(cli, "status", "--history", size=(100, 40)) as terminal:
        shown = plain(terminal.output()).splitlines()
    first = [line.split()[0] for line in shown if line.strip()]
    assert [each for each in first if each in groups] == [
        each for each in ("hits", "likes", "likes.1h") for _ in range(5)
    ]
    assert any("3 levels without warnings hidden" in line for line in shown)
    with Terminal(cli, "status", "--history", "--wide", size=(100, 40)) as terminal:
        shown = plain(terminal.output()).splitlines()
    assert {line.split()[0] for line in shown if line.strip()} >= set(groups)


def test_a_series_is_a_chart(here: Here, hits: int) -> None:
    ended = here("series", "hits", "/a", "/b", "--last", "3h", "--by", "1h", "--chart", "hits.svg", "--json")
    assert ended.err == "wrote a chart to hits.svg\n"
    assert len(ended.rows()) in (6, 8)
    drawn = Path("hits.svg").read_text()
    assert ">hits by 1h</text>" in drawn
    assert "/a: at most 5. /b: at most 7." in drawn
    refused = here("series", "hits", *"abcdef", "--chart", "more.svg")
    assert (refused.status, Path("more.svg").exists()) == (2, False)
    assert "a chart has at most 5 lines: give at most 5 keys" in refused.err


def test_a_chart_needs_numbers(here: Here) -> None:
    here("configure", "names", "--value", "str", "--combiner", "last", "--rollup", "1m:2h")
    here("add", "names", "a=ann")
    here("worker", "names", "--drain")
    refused = here("series", "names", "a", "--last", "3m", "--chart", "names.svg")
    assert (refused.status, refused.out, Path("names.svg").exists()) == (2, "", False)
    assert "a chart needs numbers from 0 on: a value of queue 'names' is ann" in refused.err


@needs_sketches
def test_a_chart_of_sketches_draws_their_numbers(here: Here) -> None:
    here("configure", "times", "--combiner", "quantiles", "--rollup", "1m:2h")
    here("add", "times", "a=0.25", "a=0.75")
    here("worker", "times", "--drain")
    assert here("series", "times", "a", "--last", "3m", "--chart", "times.svg").status == 0
    drawn = Path("times.svg").read_text()
    assert "p50 a: at most 0.25. p99 a: at most 0.75." in drawn
    assert ">0.6<" in drawn


EVENING = datetime(2025, 3, 1, 20, 7, 13, tzinfo=UTC).timestamp()
BOTTOM = "374.0"  # the height of 0


def texts(drawn: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawn)


def heights(drawn: str) -> list[list[str]]:
    """The heights of each drawn run."""
    runs = re.findall(r'<polyline [^>]*points="([^"]+)"', drawn)
    return [[point.split(",")[1] for point in run.split()] for run in runs]


def test_an_unknown_number_is_a_gap_and_zero_is_drawn() -> None:
    unknown, zero = (line_chart("t", "a", [0, 10, 20, 30], {"/": [4, 4, gap, 4]}) for gap in (None, 0))

    assert [len(run) for run in heights(unknown)] == [2, 2]
    assert all(BOTTOM not in run for run in heights(unknown))
    assert [len(run) for run in heights(zero)] == [4]
    assert heights(zero)[0][2] == BOTTOM


def test_a_name_is_at_the_last_known_number_also_at_zero() -> None:
    drawn = line_chart("t", "a", [0, 10, 20], {"ended": [8, 0, None]})

    assert re.search(r'y="378.0" style="[^"]*">ended<', drawn)


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0, ["20:07:13", "2025-03-01", "20:07:14"]),
        (1_500, ["20:10", "2025-03-01", "20:15", "20:20", "20:25", "20:30"]),
        (9 * 3_600, ["22:00", "2025-03-01", "00:00", "2025-03-02", "02:00", "04:00"]),
        (4 * 86_400, ["03-02", "2025", "03-03", "03-04", "03-05"]),
    ],
)
def test_ticks_of_times_are_round_and_have_their_date(seconds: int, ticks: list[str]) -> None:
    times = [EVENING, EVENING + seconds] if seconds else [EVENING]

    found = texts(line_chart("t", "a", times, {"/": [1] * len(times)}))

    shown = [text for text in found[2:] if re.search(r"[:-]", text) or text == "2025"]
    assert shown == ticks
    assert found[1].endswith(" UTC")
