"""The figures of `cq demo visits`: wrong sketches and wrong trends are found, and tables fit a terminal."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

import cq
from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.visits.access_log import Visit, read_log, write_log
from cq.cli.demos.visits.looks import Look, look_tables, response_table, trending_table, visitor_table
from cq.cli.demos.visits.queues import VisitQueues, measures
from cq.cli.demos.visits.sketches import compare_responses, compare_visitors, quantile
from cq.cli.demos.visits.trends import PeriodViews, TrendingPage
from cq.combiners import BUILT_IN
from cq.errors import NotReady
from cq.observers.worker.worker import Worker


def sketch(kind: str, items: object) -> Any:
    return BUILT_IN[kind].combine(None, [items])


def test_an_estimate_of_visitors_beyond_its_bounds_is_a_difference() -> None:
    visitors = {str(number) for number in range(5_000)}
    found = {"/": sketch("distinct", visitors), "/none": None}

    (estimate,) = compare_visitors(found, {"/": visitors})

    assert (estimate.page, estimate.visitors) == ("/", 5_000)
    assert estimate.estimate == found["/"].estimate
    assert estimate.error_percent == round((estimate.estimate - 5_000) / 50, 2)
    for wrong in (range(4_000), range(6_000)):
        with pytest.raises(DemoDiffers, match="distinct visitors of '/': a sketch estimates"):
            compare_visitors(found, {"/": {str(number) for number in wrong}})
    with pytest.raises(DemoDiffers, match="pages with a sketch"):
        compare_visitors(found, {"/": visitors, "/none": {"ann"}})


def test_a_few_visitors_are_counted_to_within_two() -> None:
    found = {"/": sketch("distinct", [str(number) for number in range(40)])}

    with pytest.raises(DemoDiffers, match="distinct visitors"):
        compare_visitors(found, {"/": {str(number) for number in range(43)}})


def test_quantiles_of_responses_are_exact_and_within_the_bounds_of_the_rank() -> None:
    rng = Random(3)
    numbers = sorted(rng.lognormvariate(9, 1) for _ in range(4_000))
    found = {"bytes": sketch("quantiles", numbers), "seconds": None}

    (bytes_,) = compare_responses(found, {"bytes": numbers})

    assert (bytes_.measure, bytes_.responses, bytes_.p50) == ("bytes", 4_000, numbers[1_999])
    assert bytes_.p99 == numbers[3_959] == quantile(numbers, 0.99)
    assert numbers[1_700] < bytes_.p50_estimate < numbers[2_300]
    with pytest.raises(DemoDiffers, match="number, minimum and maximum"):
        compare_responses(found, {"bytes": numbers[:-1]})
    most_are_small = [numbers[0]] * 3_000 + numbers[3_000:]
    with pytest.raises(DemoDiffers, match=r"bytes of responses: a sketch has .* at the rank 0\.5"):
        compare_responses(found, {"bytes": most_are_small})


def test_trends_are_ranks_in_two_periods_and_wrong_ones_are_found() -> None:
    periods = PeriodViews()
    pages = {300: ["/a"] * 3 + ["/b"], 600: ["/b"] * 2 + ["/c"] * 2 + ["/a"]}
    periods.count(Visit(start + 5.0, page, "ann") for start, each in pages.items() for page in each)
    right = [TrendingPage("/c", 2, 1, None), TrendingPage("/b", 2, 1, 2), TrendingPage("/a", 1, 3, 1)]

    assert periods.periods == [300, 600]
    periods.check(600, right, 3)
    periods.check(600, right[1::-1], 2)  # equal pages in the other order
    periods.check(900, [], 3)
    wrong = [
        right[:2],
        [*right[:2], TrendingPage("/a", 1, 2, 1)],
        [*right[:2], TrendingPage("/a", 1, 3, None)],
        [*right[:2], TrendingPage("/b", 1, 3, 1)],
        [right[0], right[0], right[2]],
    ]
    for each in wrong:
        with pytest.raises(DemoDiffers, match="trending pages of the period at 600"):
            periods.check(600, each, 3)


@pytest.mark.parametrize("has_sketches", [True, False])
def test_queues_count_with_and_without_sketches(tmp_path: Path, has_sketches: bool) -> None:
    write_log(tmp_path / "log", Random(4), visits=60, seconds=400.0)
    visits = list(read_log(tmp_path / "log"))
    queues = VisitQueues()
    queues.has_sketches = has_sketches
    db = cq.open(f"embedded:{tmp_path / 'visits.db'}")
    queues.configure(db, window="600/10", buckets=2)

    now = cq.runtime.time()
    for visit in visits:
        cq.transact(db, partial(queues.count, visits=[visit], at=now))
    pending = cq.transact(db, lambda tr: queues.unique_now(tr.snapshot, ["*"]))
    assert not cq.transact(db, lambda tr: queues.are_hits_combined(tr.snapshot))
    with pytest.raises(NotReady):  # `VisitDemo.look` then looks again later
        cq.transact(db, partial(queues.trending, period=0, limit=3))
    Worker(db, queues=queues.names).drain()

    periods = PeriodViews()
    periods.count(visits)
    for start in periods.periods:
        periods.check(start, cq.transact(db, partial(queues.trending, period=start, limit=3)), 3)
    assert cq.transact(db, lambda tr: queues.are_hits_combined(tr.snapshot))
    assert dict(queues.hits.queue.scan(db)) == {
        page: views for page, views in queues.visits.lifetime.scan(db) if page != "*"
    }
    responses = cq.transact(db, lambda tr: queues.responses_now(tr.snapshot))
    if has_sketches:
        compare_visitors(pending, {"*": {visit.visitor for visit in visits}})
        compare_responses(responses, {name: sorted(numbers) for name, numbers in measures(visits).items()})
    else:
        assert (pending, responses) == ({}, {})
        assert not {"demo_visits.unique", "demo_visits.responses"} & set(queues.names)


def test_the_tables_of_a_look_fit_80_columns() -> None:
    rng = Random(3)
    numbers = sorted(rng.lognormvariate(15, 3) for _ in range(3_000))
    visitors = {str(number) for number in range(3_000)}
    page = "/a/long/path/of/a/page/that/no/terminal/could/ever/show/in/one/of/its/columns.html"
    found = dict.fromkeys(("*", page), sketch("distinct", visitors))
    unique = compare_visitors(found, dict.fromkeys(found, visitors))
    look = Look(
        1e9,
        1_234_567,
        123_456,
        ((page, 123_456, 12_345),),
        unique,
        compare_responses({"bytes": sketch("quantiles", numbers)}, {"bytes": numbers}),
        (TrendingPage(page, 123_456, 1, None), TrendingPage("/b", 1, 2, 10)),
    )
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system=None)

    tables = visitor_table(look.unique), response_table(look.responses), trending_table(look.trending)
    for each in (look_tables(look), *tables):
        console.print(each, soft_wrap=False)

    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for expected in ("1,234,567", "error", "p99", "rank before", "new", "+8"):
        assert any(expected in line for line in lines)
