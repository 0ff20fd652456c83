"""The demo of visits: followers of logs are killed, and each reading of the counts equals a recount.

A look reads all numbers in one transaction, together with the number of visits that each follower has counted. These
numbers say which visits must be included, even while followers and workers run. All is compared with a recount of
exactly these visits at the time of the look.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from rich.console import Group

import cq
from cq import runtime
from cq.cli.demos.command import VisitOptions
from cq.cli.demos.harness import (
    DemoRun,
    Figures,
    Steps,
    check,
    compare,
    delete_earlier,
    killed,
    numbered,
    places,
    workers,
)
from cq.cli.demos.visits.counts import (
    LEFT_OUT,
    PERIOD,
    SITE,
    START,
    TOOK,
    ResponseNumbers,
    TrendingPage,
    VisitorEstimate,
    VisitQueues,
    VisitRecount,
    period_of,
    read_late,
    run_follower,
)
from cq.cli.demos.visits.replay import KEYS, LogWriter, ReplayClock, is_bot, read_log, write_log
from cq.cli.shared.chart import MAX_LINES, Chart, line_chart
from cq.cli.shared.chart import to_svg as image
from cq.cli.shared.options import make_store
from cq.cli.shared.output import as_word, note, print_rich, print_table, quantity
from cq.cli.shared.table import FittedTable, ShownColumn
from cq.config.rollup import LevelPart
from cq.config.window import WindowSpec, milliseconds
from cq.durations import rough
from cq.encoding import codec
from cq.encoding.sketches.sketch import library
from cq.errors import BacklogTooDeep, InvalidConfiguration, InvalidData, NotReady
from cq.intake.access_log import Visit
from cq.observers.sessions import SessionCounts
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.follower import ReadFollower
from cq.store.transact import transact

_SKIPPED_SHOWN: Final = 5
_MILLISECOND: Final = 0.001
_TRENDING_COMPARED: Final = 20
"""Pages of each period that are compared at the end, and known to the chart."""
_PAGES_DRAWN: Final = 3
_DAYS_SHOWN: Final = 10


def run(options: VisitOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    window = _checked_window(options)
    db = make_store(options.store)
    lines, read = read_visits(options, demo)
    times = [visit.time for visit, _ in lines]
    pace = ReplayClock.at_speed(window, options.speed, min(times))
    if duration := pace.about_duration(max(times)):
        note(duration)
    queues = _made_queues(db, pace)
    # Neighbouring visits go to different servers, as behind a load balancer.
    parts = [lines[number :: options.servers] for number in range(options.servers)]
    people = [[visit for visit, _ in part if not is_bot(visit)] for part in parts]
    servers = [
        Steps(demo.folder / f"access-{number}.log", len(part), KEYS + b"position/%d" % number)
        for number, part in enumerate(people)
    ]
    writers = [LogWriter(log, part, demo.rng) for log, part in zip(servers, parts, strict=True)]
    replay = Replay(db, options, queues, servers, pace, VisitRecount(people))
    # As for a page that many people load.
    page = ReadFollower(db, replay.read, every=options.look_every)
    followers = numbered(
        "follower", (partial(run_follower, url=options.store, pace=pace, log=log) for log in servers)
    )
    with page:

        def look() -> Any:
            shown = replay.look(page)
            replay.write(writers)
            return shown and look_tables(shown)

        try:
            roles = followers, workers(options.workers, options.store, queues.names)
            # No limit: the log and the speed decide how long a replay takes. Long ones say so at the start.
            figures = demo.complete(*roles, look, replay.is_window_empty, math.inf)
        except KeyboardInterrupt:
            replay.end_early(sum(map(len, people)))
            raise
    replay.drain()
    return figures | read | replay.compare_all([steps.number for steps in servers])


def _made_queues(db: Database, pace: ReplayClock) -> VisitQueues:
    """Create the queues, and delete all data of an earlier demo."""
    queues = VisitQueues()
    if queues.has_sketches:
        library()  # now: ^C during its import at a look would end in an error of the import
    else:
        note(LEFT_OUT)
    delete_earlier(db, KEYS, queues.possible)
    queues.configure(db, window=pace.spec, buckets=2)
    return queues


def _checked_window(options: VisitOptions) -> WindowSpec:
    """The window of the options; raises `InvalidConfiguration`, and `OSError` of a file before any output."""
    window = WindowSpec.parse(options.window)
    if not window:
        raise InvalidConfiguration("expected the width and slice of a window, such as 10m/10s")
    for path in options.logs or ():
        path.open("rb").close()
    if options.chart is not None:
        options.chart.open("a").close()  # now, not after a long replay
    return window


def read_visits(options: VisitOptions, demo: DemoRun) -> tuple[list[tuple[Visit, bytes]], Figures]:
    """All visits of the logs, or of a generated one, with their lines; the figures of bots and skipped lines.

    Prints a note of skipped lines. Raises `InvalidData` if there are no visits other than those of bots.
    """
    logs = options.logs or [demo.folder / "access.log.gz"]
    if not options.logs:
        write_log(logs[0], demo.rng, visits=options.number)
    skipped, number = list[str](), 0

    def skip(line: str) -> None:
        nonlocal number
        number += 1
        if number <= _SKIPPED_SHOWN:  # a log in another format may have millions
            skipped.append(line)

    lines = [each for path in logs for each in read_log(path, skip)]
    bots = sum(is_bot(visit) for visit, _ in lines)
    if len(lines) == bots:
        raise InvalidData(
            "the log has no visits: GET requests of browsers with an answer of status 2xx or 304"
        )
    for line in skipped:
        note(f"skipped, {line}")
    return lines, {"bots": bots, "skipped": skipped, "lines_skipped": number}


# The looks


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


class _LookData(NamedTuple):
    """The data of one look, read in one transaction."""

    now: int
    places: list[int]
    late: set[tuple[int, int]]
    within: dict[str, tuple[int, int]]
    top: list[str]
    unique: dict[str, Any]
    responses: dict[str, Any]
    trending: tuple[TrendingPage, ...]
    is_trending_current: bool
    sessions: SessionCounts | None


class Replay:
    """The looks at a replay. All methods raise `DemoDiffers` if a number differs from the recount.

    Args:
        servers: the log of each web server.
        pace: the clock of the replay, without its start.
    """

    def __init__(
        self,
        db: Database,
        options: VisitOptions,
        queues: VisitQueues,
        servers: Sequence[Steps],
        pace: ReplayClock,
        recount: VisitRecount,
    ) -> None:
        self._looks: list[Look] = []
        self._trends_compared = 0  # looks that compared the trending pages, too
        self._recount = recount
        self._db, self._options = db, options
        self._queues, self._servers, self._pace = queues, servers, pace
        self._version = 0
        self._oldest = 0.0  # the greatest age of what a look compared

    def look(self, page: ReadFollower[_LookData | None]) -> Look | None:
        """Start the replay when all followers are ready; then compare all numbers, each time that they were read."""
        found = page.latest
        if not self._pace.start:
            transact(self._db, self._begin)
        elif found is not None and found.value is not None and found.version != self._version:
            read = found.value.now / 1000
            check(
                found.at <= read + _MILLISECOND,
                f"the numbers of {read:.3f} state an age since {found.at:.3f}",
            )
            self._version, self._oldest = found.version, max(self._oldest, found.age)
            self._looks.append(self._compare(found.value))
        return self._looks[-1] if self._looks else None

    def write(self, writers: Sequence[LogWriter]) -> None:
        """Write what has happened by now into the logs."""
        if self._pace.start:
            for writer in writers:
                writer.write(self._db, self._pace)

    def _begin(self, tr: Any) -> None:
        # When all followers are ready: one that starts late would count its first visits late.
        ready = [tr.get(steps.key) for steps in self._servers]
        if all(each.present() for each in ready):
            self._pace = replace(self._pace, start=runtime.time())
            tr.set(START, codec.encode(self._pace.start))

    def read(self, snapshot: Any) -> _LookData | None:
        """All numbers; None before the start of the replay, and while workers are behind, or have not begun."""
        try:
            return self._read(snapshot) if self._pace.start else None
        except (BacklogTooDeep, NotReady):
            return None

    def _read(self, snapshot: Any) -> _LookData:
        queues, pages = self._queues, self._options.top
        # Read the clock after the read version: visits expired by then were removed by an earlier clock.
        snapshot.get_read_version().wait()
        now = milliseconds(None)
        within = queues.visits.within(snapshot, now=now / 1000)
        top = sorted(within, key=lambda page: (-within[page][0], page))[:pages]
        site = queues.visits.site(snapshot, pending=True, now=now / 1000)
        if site.views or site.visitors:
            within[SITE] = site.views, site.visitors
        return _LookData(
            now,
            [steps.done(snapshot) for steps in self._servers],
            read_late(snapshot, self._servers),
            within,
            top,
            *queues.sketches(snapshot, [SITE, *top]),
            queues.trending(snapshot, period_of(self._pace.of(now / 1000)), pages),
            queues.are_hits_combined(snapshot),
            queues.sessions_now(snapshot),
        )

    def _compare(self, found: _LookData) -> Look:
        recount, time = self._recount, self._pace.of(found.now / 1000)
        recount.advance(found.places, found.late, self._pace)
        recount.check_window(found.within, found.now)
        if found.is_trending_current:
            recount.check_trending(period_of(time), found.trending, self._options.top)
            self._trends_compared += 1
        if found.sessions is not None:
            recount.check_sessions(found.sessions)
        return Look(
            time,
            *found.within.get(SITE, (0, 0)),
            tuple((page, *found.within[page]) for page in found.top),
            recount.check_visitors(found.unique),
            recount.check_responses(found.responses),
            found.trending,
            found.sessions,
        )

    def is_window_empty(self) -> bool:
        """Whether nothing is within the window: workers remove expired visits, even without a reader."""
        visits = self._queues.visits
        windows = [LevelPart.WINDOW.queue_of(each.name) for each in (visits.views, visits.seen)]
        some = [cq.CombineQueue[Any, Any](name) for name in (*windows, visits.visitors.name)]
        pages = transact(self._db, lambda tr: [queue.items(tr.snapshot, limit=1) for queue in some])
        return not any(page.items for page in pages)

    def drain(self) -> list[int]:
        """Combine all visits; returns the positions of the servers."""
        # The servers have ended, but the store may still apply the last commit of one.
        before, read = [-1], places(self._db, self._servers)
        while before != read:
            before = read
            Worker(self._db, queues=self._queues.names).drain()
            read = places(self._db, self._servers)
        return read

    def end_early(self, number: int) -> None:
        """Compare what was counted of this number of visits, and print it."""
        counted = self.drain()
        looks = quantity(len(self.compare_all(counted)["looks"]), "look")
        visits = quantity(number, "visit")
        note(f"ended early: {sum(counted):,} of {visits} counted, as recounted, and at {looks} before")

    def compare_all(self, counted: Sequence[int]) -> Figures:
        """Compare all visits up to these positions, and write the chart; returns their figures."""
        options, queues, recount = self._options, self._queues, self._recount
        recount.advance(counted, (), self._pace)
        compare("the views of all time", queues.lifetime(self._db), recount.views)
        limit = max(options.top, _TRENDING_COMPARED)
        periods = {}
        for start in sorted(recount.periods):
            periods[start] = transact(self._db, partial(queues.trending, period=start, limit=limit))
            recount.check_trending(start, periods[start], limit)
        days = recount.sessions()
        sessions = transact(self._db, lambda tr: {day: queues.sessions.get(tr.snapshot, day) for day in days})
        compare("sessions of days", sessions, days)
        unique, responses = transact(self._db, lambda tr: queues.sketches(tr.snapshot, ()))
        if queues.has_sketches:
            unique = dict.fromkeys(recount.readers) | dict(queues.unique.scan(self._db))
        estimates = {each.page: each for each in recount.check_visitors(unique)}
        if options.chart is not None:
            drawn = to_svg(self._looks, self._pace.window.width / 1000, periods)
            options.chart.write_text(drawn, encoding="utf-8")
        most = recount.views.most_common(options.top + 1)
        return {
            "visits": recount.views[SITE],
            "pages": len(recount.views) - 1,
            "late": len(transact(self._db, lambda tr: read_late(tr.snapshot, self._servers))),
            "speed": self._pace.speed,
            "looks": self._looks,
            "oldest_seconds": round(self._oldest, 3),
            "trends_compared": self._trends_compared,
            "lifetime": [each for each in most if each[0] != SITE],
            "trending": next(reversed(periods.values()), ())[: options.top],
            "sessions": sessions,
            "unique": [estimates[page] for page, _ in most if page in estimates],
            "responses": recount.check_responses(responses),
        }


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


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    rows = (
        [
            clock(look.time),
            f"{look.views:,}",
            f"{look.visitors:,}",
            ", ".join(f"{as_word(page)} {views:,}" for page, views, _ in look.top),
        ]
        for look in figures["looks"]
    )
    print_table(["time", "views", "visitors", "most views"], rows, right=["views", "visitors"])
    print_rich(*number_tables(*(figures[each] for each in ("trending", "sessions", "unique", "responses"))))
    lines = figures["lines_skipped"]
    skipped = f", {quantity(lines, 'line')} skipped" if lines else ""
    bots = f", {quantity(figures['bots'], 'visit')} of bots not counted" if figures["bots"] else ""
    note(
        f"{quantity(figures['visits'], 'visit')} of {quantity(figures['pages'], 'page')} "
        f"at {figures['speed']:,.0f} times their speed, {killed(figures)}, "
        f"{quantity(figures['late'], 'visit')} too late for the window{bots}{skipped}: "
        f"as recounted at {quantity(len(figures['looks']), 'look')} of numbers that were read at most "
        f"{figures['oldest_seconds']:.1f} s before, and 0 lost"
    )


def look_tables(look: Look) -> Any:
    """The tables of one look."""
    site = clock(look.time), look.views, look.visitors
    rows = [[as_word(page), f"{views:,}", f"{visitors:,}"] for page, views, visitors in (site, *look.top)]
    pages = FittedTable(["page", "views", "visitors"], rows, right=["views", "visitors"])
    days = {"all days": look.sessions} if look.sessions else {}
    return Group(pages, *number_tables(look.trending, days, look.unique, look.responses))


def number_tables(
    trending: Sequence[TrendingPage],
    days: Mapping[str, SessionCounts],
    unique: Sequence[VisitorEstimate],
    responses: Sequence[ResponseNumbers],
) -> list[Any]:
    """A table for each kind of numbers that there are: trending pages, sessions of days, visitors, and responses."""
    sessions = list(days.items())[-_DAYS_SHOWN:]
    kinds: list[tuple[list[ShownColumn], Sequence[Any]]] = [
        (_TRENDING, trending),
        (_SESSIONS, sessions),
        (_VISITORS, unique),
        (_RESPONSES, responses),
    ]
    return [part for columns, rows in kinds if rows for part in ("", FittedTable.of(columns, rows))]


def _change(each: TrendingPage) -> str:
    if each.before is None:
        return "new"
    return f"{each.before - each.rank:+}" if each.before != each.rank else "="


def _quantile(name: str) -> Callable[[ResponseNumbers], str]:
    return lambda each: f"{getattr(each, name):,.{3 if each.measure == TOOK else 0}f}"


_TRENDING: Final = [
    ShownColumn("trending page", lambda each: as_word(each.page), is_number=False),
    ShownColumn(f"views in {PERIOD}", lambda each: f"{each.views:,}"),
    ShownColumn("rank", lambda each: each.rank),
    ShownColumn("rank before", lambda each: each.before or "-"),
    ShownColumn("change", _change),
]
_SESSIONS: Final = [
    ShownColumn("day", lambda each: each[0], is_number=False),
    ShownColumn("sessions", lambda each: f"{each[1].sessions:,}"),
    ShownColumn("mean length", lambda each: rough(each[1].mean_seconds or 0)),
    ShownColumn("views per session", lambda each: f"{each[1].mean_visits or 0:.1f}"),
    ShownColumn("bounces", lambda each: f"{100 * (each[1].bounce_share or 0):.1f} %"),
]
_VISITORS: Final = [
    ShownColumn(
        "page", lambda each: "all pages" if each.page == SITE else as_word(each.page), is_number=False
    ),
    ShownColumn("visitors of all time", lambda each: f"{each.visitors:,}"),
    ShownColumn("sketch", lambda each: f"{each.estimate:,}"),
    ShownColumn("error", lambda each: f"{each.error_percent:+.1f} %"),
]
_RESPONSES: Final = [
    ShownColumn("responses", lambda each: each.measure, is_number=False),
    ShownColumn("number", lambda each: f"{each.responses:,}"),
    ShownColumn("p50", _quantile("p50")),
    ShownColumn("sketch", _quantile("p50_estimate")),
    ShownColumn("p99", _quantile("p99")),
    ShownColumn("sketch", _quantile("p99_estimate")),
]


def clock(time: float) -> str:
    """A time of the log."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
