"""The looks of the demo of visits: their numbers, as tables on a terminal and as charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group

from cq.cli.demos.visits.queues import PERIOD, SITE, TOOK, TrendingPage
from cq.cli.demos.visits.recount import ResponseNumbers, VisitorEstimate
from cq.cli.shared.chart import MAX_LINES, Chart, line_chart
from cq.cli.shared.chart import to_svg as image
from cq.cli.shared.output import as_word
from cq.cli.shared.table import FittedTable
from cq.durations import rough
from cq.observers.sessions import SessionCounts

_PAGES_DRAWN: Final = 3
_DAYS_SHOWN: Final = 10


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
        sessions: those of all days until then; None if workers had not combined all of them.
    """

    time: float
    views: int
    visitors: int
    top: tuple[tuple[str, int, int], ...]
    unique: tuple[VisitorEstimate, ...] = ()
    responses: tuple[ResponseNumbers, ...] = ()
    trending: tuple[TrendingPage, ...] = ()
    sessions: SessionCounts | None = None


# Charts


def to_svg(looks: Sequence[Look], window: float, periods: Mapping[int, Sequence[TrendingPage]]) -> str:
    """The charts of a replay: of the window, of the visitors of all time, and of the trending pages.

    Args:
        looks: all looks.
        window: the width of the window, in seconds.
        periods: {start: trending pages} of each period of the log's time, in seconds since 1970.
    """
    times = [look.time for look in looks]
    lines: dict[str, Sequence[int | None]] = {
        "views": [look.views for look in looks],
        "visitors": [look.visitors for look in looks],
        **_lines([{page: views for page, views, _ in look.top} for look in looks], _PAGES_DRAWN),
    }
    title = f"Visits of the last {window / 60:,.3g} minutes"
    charts = [line_chart(title, "at each look as recounted, by the clock of the log", times, lines)]
    if any(look.unique for look in looks):
        charts.append(_visitor_chart(looks, times))
    if periods:
        views = [{each.page: each.views for each in pages} for pages in periods.values()]
        about = "by the clock of the log, where a page is among the first"
        title = f"Trending pages: views in {PERIOD}"
        charts.append(line_chart(title, about, list(periods), _lines(views, MAX_LINES)))
    return image(*charts)


def _lines(rows: Sequence[Mapping[str, int]], number: int) -> dict[str, list[int | None]]:
    """{page: its number in each row} of the pages with the highest numbers.

    None, not 0, where a row lacks a page: a page that is not among the first ones may have views.
    """
    highest: Counter[str] = Counter()
    for row in rows:
        highest |= Counter(row)
    return {page: [row.get(page) for row in rows] for page, _ in highest.most_common(number)}


def _visitor_chart(looks: Sequence[Look], times: Sequence[float]) -> Chart:
    """Visitors of all time, counted exactly and estimated by sketches: of all pages, and of the page with the most."""
    estimates = [{each.page: each.estimate for each in look.unique} for look in looks]
    lines: dict[str, list[int | None]] = {}
    for page, exact in _lines(
        [{each.page: each.visitors for each in look.unique} for look in looks], 2
    ).items():
        name = "all pages" if page == SITE else page
        lines[name] = exact
        lines[f"{name[:13]}, sketch"] = [row.get(page) for row in estimates]
    worst = max((abs(each.error_percent) for look in looks for each in look.unique), default=0.0)
    about = f"counted exactly, and by sketches, whose largest error was {worst:.1f} %"
    return line_chart("Visitors of all time", about, times, lines)


# Tables


def look_tables(look: Look) -> Any:
    """The tables of one look."""
    estimates = {each.page: each for each in look.unique}
    heads = ["page", "views", "visitors", *(["of all time", "sketch", "error"] if estimates else [])]
    rows = []
    for page, views, visitors in ((SITE, look.views, look.visitors), *look.top):
        row = [clock(look.time) if page == SITE else as_word(page), f"{views:,}", f"{visitors:,}"]
        rows.append([*row, *(_estimated(estimates[page]) if page in estimates else [""] * (len(heads) - 3))])
    tables: list[Any] = [FittedTable(heads, rows, right=heads[1:])]
    if look.trending:
        tables += ["", trending_table(look.trending)]
    if look.sessions is not None:
        tables += ["", session_table({"all days": look.sessions})]
    if look.responses:
        tables += ["", response_table(look.responses)]
    return Group(*tables)


def visitor_table(estimates: Sequence[VisitorEstimate]) -> Any:
    """A table of the visitors of all time."""
    heads = ["page", "visitors of all time", "sketch", "error"]
    rows = (
        ["all pages" if each.page == SITE else as_word(each.page), *_estimated(each)] for each in estimates
    )
    return FittedTable(heads, rows, right=heads[1:])


def _estimated(each: VisitorEstimate) -> list[str]:
    return [f"{each.visitors:,}", f"{each.estimate:,}", f"{each.error_percent:+.1f} %"]


def response_table(responses: Sequence[ResponseNumbers]) -> Any:
    """A table of the quantiles of responses."""
    heads = ["responses", "number", "p50", "sketch", "p99", "sketch"]
    rows = []
    for each in responses:
        numbers = (each.p50, each.p50_estimate, each.p99, each.p99_estimate)
        shape = "{:,.3f}" if each.measure == TOOK else "{:,.0f}"
        rows.append([each.measure, f"{each.responses:,}", *map(shape.format, numbers)])
    return FittedTable(heads, rows, right=heads[1:])


def session_table(days: Mapping[str, SessionCounts]) -> Any:
    """A table of the sessions of the latest days."""
    heads = ["day", "sessions", "mean length", "views per session", "bounces"]
    rows = (
        [
            day,
            f"{each.sessions:,}",
            rough(each.mean_seconds or 0),
            f"{each.mean_visits or 0:.1f}",
            f"{100 * (each.bounce_share or 0):.1f} %",
        ]
        for day, each in list(days.items())[-_DAYS_SHOWN:]
    )
    return FittedTable(heads, rows, right=heads[1:])


def trending_table(pages: Sequence[TrendingPage]) -> Any:
    """A table of the trending pages of a period."""
    heads = ["trending page", f"views in {PERIOD}", "rank", "rank before", "change"]
    rows = (
        [as_word(each.page), f"{each.views:,}", each.rank, each.before or "-", _change(each)]
        for each in pages
    )
    return FittedTable(heads, rows, right=heads[1:])


def _change(each: TrendingPage) -> str:
    if each.before is None:
        return "new"
    return f"{each.before - each.rank:+}" if each.before != each.rank else "="


def clock(time: float) -> str:
    """A time of the log."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
