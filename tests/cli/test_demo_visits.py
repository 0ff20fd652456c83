"""`cq demo visits`: every look equals a recount, though its processes are killed, and what differs is found."""

from __future__ import annotations

import gzip
import io
import itertools
import math
import signal
import tracemalloc
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

import cq
from cq import runtime
from cq.cli.demos.harness import DemoCrew, DemoDiffers, DemoRun
from cq.cli.demos.visits.counts import TrendingPage, VisitorEstimate, VisitQueues, VisitRecount
from cq.cli.demos.visits.demo import Look, _lines, look_tables, number_tables, to_svg
from cq.cli.demos.visits.replay import ReplayClock, is_bot, read_log, write_log
from cq.combiners import BUILT_IN
from cq.config.window import WindowSpec
from cq.errors import NotReady
from cq.intake.access_log import Visit
from cq.observers.sessions import SessionCounts
from cq.observers.visits import Visits
from cq.observers.worker.worker import Worker
from tests.cli.conftest import Cli, Here
from tests.kit.processes import SECONDS, wait_until

COMMON = b'192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache.gif?a=1 HTTP/1.0" 200 2326\n'
VISIT = Visit(971_211_336.0, "/apache.gif", "192.0.2.7", "", 2_326)


@pytest.mark.parametrize("packed", [False, True])
def test_a_long_line_is_read_in_pieces_and_the_next_one_as_it_is(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "access.log"
    content = COMMON + b"x" * 30_000_000 + b"\n" + COMMON
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    skipped: list[str] = []

    tracemalloc.start()
    try:
        found = [visit for visit, _ in read_log(path, skipped.append)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert found == [VISIT] * 2
    assert skipped[0].startswith(f"{path}:2: neither common nor combined log format")
    assert peak < 6_000_000


def test_a_log_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(gzip.compress(COMMON * 1000)[:60])

    with pytest.raises(OSError, match="truncated or damaged"):
        list(read_log(path))


def test_a_log_that_is_made_up_is_one_and_the_same_for_a_seed(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.log", "b.log.gz")]
    for path in paths:
        write_log(path, Random(1), visits=500)

    first, second = ([visit for visit, _ in read_log(path, pytest.fail)] for path in paths)

    assert first == second
    assert 400 < len(first) <= 500
    assert [visit.time for visit in first] == sorted(visit.time for visit in first)
    sizes = [visit.size for visit in first if visit.size is not None]
    times = [visit.took for visit in first if visit.took is not None]
    assert len(sizes) < len(times) == len(first)
    assert 7_000 < median(sizes) < 14_000
    assert 0.03 < median(times) < 0.08
    assert mean(sizes) > 1.3 * median(sizes)


def test_every_look_equals_a_recount_whoever_is_killed(cli: Cli, demo_db: Any) -> None:
    options = [
        "--number",
        "1500",
        "--speed",
        "800",
        "--kill-every",
        "0.5",
        "--look-every",
        "0.3",
        "--seed",
        "5",
    ]
    ended = cli.run("demo", "visits", *options, "--chart", "visits.svg", "--json")

    assert (ended.status, ended.err) == (0, "seed 5\n")
    (found,) = ended.rows()
    assert (found["seed"], found["lines_skipped"], found["skipped"]) == (5, 0, [])
    assert 1_400 < found["visits"] <= 1_500
    assert found["kills"] > 0
    assert found["bots"] > 0
    assert len(found["looks"]) > 1
    assert found["oldest_seconds"] > 0
    assert [each["page"] for each in found["unique"]] == ["*", *(page for page, _ in found["lifetime"])]
    assert all(abs(each["error_percent"]) < 10 for each in found["unique"])
    assert [each["measure"] for each in found["responses"]] == ["bytes", "seconds"]
    assert found["responses"][1]["responses"] == found["visits"]
    assert 0 < found["responses"][1]["p50"] < found["responses"][1]["p99"]
    assert [each["rank"] for each in found["trending"]][:1] == [1]
    (sessions,) = found["sessions"].values()
    assert sessions["visits"] == found["visits"]
    assert 0 < sessions["bounces"] < sessions["sessions"]
    visits = Visits("demo_visits")
    lifetime = dict(visits.lifetime.scan(demo_db))
    assert lifetime[""] == found["visits"] == sum(lifetime.values()) - lifetime[""]
    assert sorted(lifetime.values())[-2] == found["lifetime"][0][1]
    assert cq.transact(demo_db, visits.within) == {}
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


def test_lines_that_are_skipped_are_named_and_a_log_without_visits_is_refused(here: Here, cli: Cli) -> None:
    (cli.folder / "access.log").write_text("one\n" * 7)

    ended = here("demo", "visits", str(cli.folder / "access.log"), "--seed", "1")

    assert (ended.status, ended.out) == (2, "")
    assert "cq: the log has no visits" in ended.err
    ended = here("demo", "visits", "--chart", "none/visits.svg")
    assert (ended.status, ended.err) == (1, "cq: No such file or directory: none/visits.svg\n")


def read_places(db: Any) -> list[int]:
    """The numbers of visits that two servers have counted."""
    keys = [b"demo_visits/position/%d" % number for number in range(2)]
    return cq.transact(db, lambda tr: [int(tr.get(key).value or 0) for key in keys])


def test_an_interrupt_leaves_the_recounted_visits_and_the_chart(cli: Cli, demo_db: Any) -> None:
    write_log(cli.folder / "access.log", Random(3), visits=2_000, seconds=100_000.0)
    demo = cli.start("demo", "visits", "access.log", "--speed", "200", "--chart", "visits.svg", "--seed", "3")
    assert demo.stderr is not None
    assert demo.stderr.readline().startswith(
        b"the replay takes about 7 min 56 s at 200 times the log's speed; "
    )
    wait_until(lambda: read_places(demo_db)[0], demo)

    demo.send_signal(signal.SIGINT)

    _, err = demo.communicate(timeout=SECONDS)
    places = read_places(demo_db)
    assert demo.returncode == 130, err.decode()
    assert f"\nended early: {sum(places):,} of " in err.decode()
    assert "counted, as recounted" in err.decode()
    assert dict(Visits("demo_visits").lifetime.scan(demo_db))[""] == sum(places)
    assert ET.parse(cli.folder / "visits.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("seconds", "speed", "line"),
    [
        (4_000, 100.0, None),
        (
            86_400,
            10.0,
            "the replay takes about 2 h 25 min at 10 times the log's speed; --speed 1000 takes about 1 min 27 s",
        ),
        (864_000, 1_000.0, "the replay takes about 14 min 24 s at 1,000 times the log's speed"),
    ],
)
def test_a_long_replay_has_its_duration_and_a_faster_speed(
    seconds: float, speed: float, line: str | None
) -> None:
    pace = ReplayClock.at_speed(WindowSpec(600_000, 10_000), speed, first=7.0)

    assert pace.about_duration(7.0 + seconds) == line


def test_a_replay_of_weeks_reaches_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    weeks = itertools.count(0.0, 7 * 86_400.0)
    monkeypatch.setattr(runtime, "monotonic", lambda: next(weeks))
    looks = iter([False, False, True])

    DemoCrew({}, DemoRun(1, math.inf, Path(), Random(1))).run(lambda: next(looks))

    assert next(looks, None) is None
    assert next(weeks) > 2 * 7 * 86_400.0


# The figures


PACE = ReplayClock(WindowSpec(600_000, 10_000), milliseconds=100, first=0.0, start=1_000.0)


def sketch(kind: str, items: object) -> Any:
    return BUILT_IN[kind].combine(None, [items])


def recount_of(visits: list[Visit]) -> VisitRecount:
    recount = VisitRecount([visits])
    recount.advance([len(visits)], (), PACE)
    return recount


def visited_by(number: int, page: str = "/") -> VisitRecount:
    return recount_of([Visit(0.0, page, str(visitor)) for visitor in range(number)])


def test_an_estimate_of_visitors_beyond_its_bounds_is_a_difference() -> None:
    found = {"/": sketch("distinct", {str(number) for number in range(5_000)}), "/none": None}

    (estimate,) = visited_by(5_000).check_visitors(found)

    assert (estimate.page, estimate.visitors) == ("/", 5_000)
    assert estimate.estimate == found["/"].estimate
    assert estimate.error_percent == round((estimate.estimate - 5_000) / 50, 2)
    for wrong in (4_000, 6_000):
        with pytest.raises(DemoDiffers, match="distinct visitors of '/': a sketch estimates"):
            visited_by(wrong).check_visitors(found)
    with pytest.raises(DemoDiffers, match="pages with a sketch"):
        visited_by(5_000, "/none").check_visitors(found)
    few = {"/": sketch("distinct", [str(number) for number in range(40)])}
    with pytest.raises(DemoDiffers, match="distinct visitors"):  # a few are counted to within two
        visited_by(43).check_visitors(few)


def test_quantiles_of_responses_are_exact_and_within_the_bounds_of_the_rank() -> None:
    rng = Random(3)
    numbers = [round(rng.lognormvariate(9, 1)) for _ in range(4_000)]
    found = {"bytes": sketch("quantiles", numbers), "seconds": None}
    ascending = sorted(numbers)

    def recount(sizes: list[int]) -> VisitRecount:
        return recount_of([Visit(0.0, "/", "ann", "", size) for size in sizes])

    (bytes_,) = recount(numbers).check_responses(found)

    assert (bytes_.measure, bytes_.responses) == ("bytes", 4_000)
    assert (bytes_.p50, bytes_.p99) == (ascending[1_999], ascending[3_959])
    assert ascending[1_700] < bytes_.p50_estimate < ascending[2_300]
    with pytest.raises(DemoDiffers, match="number, minimum and maximum"):
        recount(ascending[:-1]).check_responses(found)
    with pytest.raises(DemoDiffers, match=r"bytes of responses: a sketch has .* at the rank 0\.5"):
        recount(ascending[:1] * 3_000 + ascending[3_000:]).check_responses(found)


def test_trends_are_ranks_in_two_periods_and_wrong_ones_are_found() -> None:
    pages = {300: ["/a"] * 3 + ["/b"], 600: ["/b"] * 2 + ["/c"] * 2 + ["/a"]}
    recount = recount_of([Visit(start + 5.0, page, "ann") for start, each in pages.items() for page in each])
    right = [TrendingPage("/c", 2, 1, None), TrendingPage("/b", 2, 1, 2), TrendingPage("/a", 1, 3, 1)]

    assert sorted(recount.periods) == [300, 600]
    recount.check_trending(600, right, 3)
    recount.check_trending(600, right[1::-1], 2)  # equal pages in the other order
    recount.check_trending(900, [], 3)
    wrong = [
        right[:2],
        [*right[:2], TrendingPage("/a", 1, 2, 1)],
        [*right[:2], TrendingPage("/a", 1, 3, None)],
        [*right[:2], TrendingPage("/b", 1, 3, 1)],
        [right[0], right[0], right[2]],
    ]
    for each in wrong:
        with pytest.raises(DemoDiffers, match="trending pages of the period at 600"):
            recount.check_trending(600, each, 3)


def test_visits_leave_the_window_with_their_slice() -> None:
    recount = VisitRecount([[Visit(5.0, "/a", "ann"), Visit(5.0, "/a", "ann"), Visit(15.0, "/a", "bob")]])
    leaves = 1_000_000 + 100 + 6_000  # 600 s of the log are 6 s
    recount.advance([2], {(0, 1)}, PACE)
    recount.check_window({"*": (1, 1), "/a": (1, 1)}, 1_000_000)
    recount.advance([3], {(0, 1)}, PACE)
    recount.check_window({"*": (2, 2), "/a": (2, 2)}, leaves - 1)
    recount.check_window({"*": (1, 1), "/a": (1, 1)}, leaves)
    with pytest.raises(DemoDiffers, match="at a look"):
        recount.check_window({"*": (1, 1), "/a": (1, 1)}, leaves + 100)


@pytest.mark.parametrize("has_sketches", [True, False])
def test_queues_count_with_and_without_sketches(
    tmp_path: Path, has_sketches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path / "log", Random(4), visits=60, seconds=400.0)
    read = [visit for visit, _ in read_log(tmp_path / "log")]
    visits = [visit for visit in read if not is_bot(visit)]
    if not has_sketches:
        monkeypatch.setattr("cq.cli.demos.visits.counts.find_spec", lambda package: None)
    queues = VisitQueues()
    db = cq.open(f"embedded:{tmp_path / 'visits.db'}")
    queues.configure(db, window="600/10", buckets=2)

    cq.transact(db, partial(queues.count, visits=visits, ids=queues.visits.ids(db)))
    cq.transact(
        db, lambda tr: queues.visits.count_many(tr, [(visit.page, visit.visitor) for visit in visits])
    )
    sketches = cq.transact(db, lambda tr: queues.sketches(tr.snapshot, ["*"]))
    assert not cq.transact(db, lambda tr: queues.are_hits_combined(tr.snapshot))
    with pytest.raises(NotReady):  # `Replay.look` then looks again later
        cq.transact(db, partial(queues.trending, period=0, limit=3))
    Worker(db, queues=queues.names).drain()

    recount = recount_of(visits)
    for start in recount.periods:
        recount.check_trending(start, cq.transact(db, partial(queues.trending, period=start, limit=3)), 3)
    assert cq.transact(db, lambda tr: queues.are_hits_combined(tr.snapshot))
    assert queues.lifetime(db) == recount.views
    assert dict(queues.hits.queue.scan(db)) == {
        page: views for page, views in recount.views.items() if page != "*"
    }
    if has_sketches:
        assert len(recount.check_visitors(sketches[0])) == 1
        assert len(recount.check_responses(sketches[1])) == 2
    else:
        assert sketches == ({}, {})
        assert not {"demo_visits.unique", "demo_visits.responses"} & set(queues.names)


def test_the_tables_of_a_look_fit_80_columns() -> None:
    rng = Random(3)
    page = "/a/long/path/of/a/page/that/no/terminal/could/ever/show/in/one/of/its/columns.html"
    sizes = [round(rng.lognormvariate(15, 3)) for _ in range(3_000)]
    recount = recount_of([Visit(0.0, page, str(number), "", size) for number, size in enumerate(sizes)])
    visitors = sketch("distinct", {str(number) for number in range(3_000)})
    look = Look(
        1e9,
        1_234_567,
        123_456,
        ((page, 123_456, 12_345),),
        recount.check_visitors(dict.fromkeys(("*", page), visitors)),
        recount.check_responses({"bytes": sketch("quantiles", sizes)}),
        (TrendingPage(page, 123_456, 1, None), TrendingPage("/b", 1, 2, 10)),
    )
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system=None)

    console.print(look_tables(look), soft_wrap=False)

    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for expected in ("1,234,567", "error", "p99", "rank before", "new", "+8"):
        assert any(expected in line for line in lines)


def test_a_page_has_gaps_where_it_is_not_among_the_first_ones() -> None:
    """It may have views all the same."""
    tops = [{"/a": 5}, {"/a": 6}, {"/b": 7}, {"/a": 4}]

    assert _lines(tops, 3) == {"/b": [None, None, 7, None], "/a": [5, 6, None, 4]}


def test_a_chart_of_no_looks_or_of_strange_pages_is_one() -> None:
    looks = [Look(0.0, 5, 2, (("/<b>&" * 10, 5, 2),)), Look(10.0, 0, 0, ())]

    for some in ([], looks[:1], looks):
        drawn = to_svg(some, 600.0, {})
        assert drawn.startswith("<svg ")
        assert "<b>" not in drawn


def test_sessions_are_recounted_by_visitor_and_day() -> None:
    times = (86_300, 90_000, 91_799, 93_599)  # one on the day before, and the last one a whole gap later
    recount = recount_of([Visit(float(at), "/", visitor) for at in times for visitor in ("ann", "bob")])

    assert recount.sessions() == {
        "1970-01-01": SessionCounts(2, 2, 2, 0),
        "1970-01-02": SessionCounts(4, 2, 6, 3_598),
    }
    recount.check_sessions(SessionCounts(6, 4, 8, 3_598))
    with pytest.raises(DemoDiffers, match="sessions: not as recounted"):
        recount.check_sessions(SessionCounts(5, 4, 8, 3_598))
    shown = io.StringIO()
    Console(file=shown, width=80).print(*number_tables((), recount.sessions(), (), ()))
    assert shown.getvalue().splitlines()[2:] == [
        "1970-01-01         2        0.0 s                1.0  100.0 %",
        "1970-01-02         4  14 min 59 s                1.5   50.0 %",
    ]


def test_charts_of_visitors_and_of_trending_pages_follow() -> None:
    estimates = (VisitorEstimate("*", 40, 41, 2.5), VisitorEstimate("/a", 30, 30, 0.0))
    looks = [Look(0.0, 9, 3, (), estimates), Look(60.0, 9, 3, (), estimates)]
    periods = {0: [TrendingPage("/a", 5, 1, None)], 300: [TrendingPage("/b", 7, 1, None)]}

    drawn = to_svg(looks, 600.0, periods)

    assert "counted exactly, and by sketches, whose largest error was 2.5 %" in drawn
    assert (
        "all pages: at most 40. all pages, sketch: at most 41. /a: at most 30. /a, sketch: at most 30."
        in drawn
    )
    assert "Trending pages: views in 5m. /b: at most 7. /a: at most 5." in drawn
