"""The looks of the demo of visits: their numbers, as tables on a terminal and as a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group
from rich.live import Live

from cq.cli.demos.visits.queues import SITE, TOOK
from cq.cli.demos.visits.sketches import ResponseNumbers, VisitorEstimate
from cq.cli.demos.visits.trends import PERIOD, TrendingPage
from cq.cli.shared.chart import MAX_LINES, Chart, line_chart
from cq.cli.shared.chart import to_svg as image
from cq.cli.shared.output import as_word, make_table, stderr

_PAGES_DRAWN: Final = 3


@dataclass(frozen=True)
class Look:
    """The numbers of one comparison with the recount.

    Attributes:
        time: of the log's clock.
        views, visitors: of the whole site in the window.
        top: (page, views, visitors) of the pages with the most views in the window.
        unique: visitors of the whole site and of these pages until then, by sketches; empty without sketches.
        responses: sizes and times of responses until then, by sketches.
        trending: pages with the most views in the present period of the log's time, as far as they were combined.
    """

    time: float
    views: int
    visitors: int
    top: tuple[tuple[str, int, int], ...]
    unique: tuple[VisitorEstimate, ...] = ()
    responses: tuple[ResponseNumbers, ...] = ()
    trending: tuple[TrendingPage, ...] = ()


def to_svg(looks: Sequence[Look], window: float, periods: Mapping[int, Sequence[TrendingPage]]) -> str:
    """The charts of a replay: of the window, of the visitors of all time, and of the trending pages.

    Args:
        looks: all looks.
        window: the width of the window, in seconds.
        periods: {start: trending pages} of each period of the log's time, in seconds since 1970.
    """
    charts = [_window_chart(looks, window)]
    if any(look.unique for look in looks):
        charts.append(_visitor_chart(looks))
    if periods:
        charts.append(_trending_chart(periods))
    return image(*charts)


def _window_chart(looks: Sequence[Look], window: float) -> Chart:
    """Views, visitors, and views of the most viewed pages."""
    highest: Counter[str] = Counter()
    for look in looks:
        for page, views, _ in look.top:
            highest[page] = max(highest[page], views)
    lines: dict[str, list[int | None]] = {
        "views": [look.views for look in looks],
        "visitors": [look.visitors for look in looks],
    }
    for page, _ in highest.most_common(_PAGES_DRAWN):
        # None, not 0: a page that is not among the first pages of a look may have views.
        lines[page] = [{each: views for each, views, _ in look.top}.get(page) for look in looks]
    title = f"Visits of the last {window / 60:,.3g} minutes"
    about = "at each look as recounted, by the clock of the log"
    return line_chart(title, about, [look.time for look in looks], lines)


def _visitor_chart(looks: Sequence[Look]) -> Chart:
    """Visitors of all time, counted exactly and estimated by sketches: of all pages, and of the page with the most."""
    found = [{each.page: each for each in look.unique} for look in looks]
    most = Counter({each.page: each.visitors for look in looks for each in look.unique if each.page != SITE})
    lines: dict[str, list[int | None]] = {}
    for page in (SITE, *(page for page, _ in most.most_common(1))):
        name = "all pages" if page == SITE else page
        here = [each.get(page) for each in found]
        lines[name] = [each.visitors if each else None for each in here]
        lines[f"{name[:13]}, sketch"] = [each.estimate if each else None for each in here]
    worst = max((abs(each.error_percent) for look in looks for each in look.unique), default=0.0)
    about = f"counted exactly, and by sketches, whose largest error was {worst:.1f} %"
    return line_chart("Visitors of all time", about, [look.time for look in looks], lines)


def _trending_chart(periods: Mapping[int, Sequence[TrendingPage]]) -> Chart:
    """Views of the pages that had the most views in a period."""
    views = {start: {each.page: each.views for each in pages} for start, pages in periods.items()}
    highest: Counter[str] = Counter()
    for of_period in views.values():
        highest |= Counter(of_period)
    # None, not 0: a page that is not among the first pages of a period may have views.
    lines = {page: [each.get(page) for each in views.values()] for page, _ in highest.most_common(MAX_LINES)}
    about = "by the clock of the log, where a page is among the first"
    return line_chart(f"Trending pages: views in {PERIOD}", about, list(views), lines)


@contextmanager
def shown_looks() -> Iterator[Callable[[Look], object]]:
    """A function that shows a look in a live table; without a terminal it does nothing."""
    if not stderr.is_terminal:
        yield lambda look: None
        return
    with Live(console=stderr, transient=True) as live:
        yield lambda look: live.update(look_tables(look))


def look_tables(look: Look) -> Any:
    """The tables of one look."""
    estimates = {each.page: each for each in look.unique}
    heads = ["page", "views", "visitors", *(["of all time", "sketch", "error"] if estimates else [])]
    rows = []
    for page, views, visitors in ((SITE, look.views, look.visitors), *look.top):
        row = [clock(look.time) if page == SITE else as_word(page), f"{views:,}", f"{visitors:,}"]
        rows.append(row + (_estimated(estimates.get(page)) if estimates else []))
    tables: list[Any] = [make_table(heads, rows, right=heads[1:])]
    if look.trending:
        tables += ["", trending_table(look.trending)]
    if look.responses:
        tables += ["", response_table(look.responses)]
    return Group(*tables)


def visitor_table(estimates: Sequence[VisitorEstimate]) -> Any:
    """A table of the visitors of all time."""
    heads = ["page", "visitors of all time", "sketch", "error"]
    rows = (
        ["all pages" if each.page == SITE else as_word(each.page), *_estimated(each)] for each in estimates
    )
    return make_table(heads, rows, right=heads[1:])


def response_table(responses: Sequence[ResponseNumbers]) -> Any:
    """A table of the quantiles of responses."""
    heads = ["responses", "number", "p50", "sketch", "p99", "sketch"]
    rows = []
    for each in responses:
        numbers = (each.p50, each.p50_estimate, each.p99, each.p99_estimate)
        shape = "{:,.3f}" if each.measure == TOOK else "{:,.0f}"
        rows.append([each.measure, f"{each.responses:,}", *map(shape.format, numbers)])
    return make_table(heads, rows, right=heads[1:])


def trending_table(pages: Sequence[TrendingPage]) -> Any:
    """A table of the trending pages of a period."""
    heads = ["trending page", f"views in {PERIOD}", "rank", "rank before", "change"]
    rows = (
        [as_word(each.page), f"{each.views:,}", each.rank, each.before or "-", _change(each)]
        for each in pages
    )
    return make_table(heads, rows, right=heads[1:])


def _change(each: TrendingPage) -> str:
    return (
        "new" if each.before is None else f"{each.before - each.rank:+}" if each.before != each.rank else "="
    )


def _estimated(each: VisitorEstimate | None) -> list[str]:
    return (
        ["", "", ""]
        if each is None
        else [f"{each.visitors:,}", f"{each.estimate:,}", f"{each.error_percent:+.1f} %"]
    )


def clock(time: float) -> str:
    """A time of the log."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
