"""The queues of the demo of visits, the followers that count into them, and the recount of what must be in them.

The recount is made from the logs and the positions of the followers, without the store. Sums and ranks must be equal.
Estimates of sketches must be within the bounds that the sketches state, which hold in 95 or 99 of 100 cases. The
comparison allows three times their distance, at least six standard deviations, so that it never fails for sketches of a
correct build.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
from importlib.util import find_spec
from math import ceil
from threading import Event
from typing import Any, Final

import cq
from cq.admin.configure import put_observer
from cq.admin.configured_queue import WindowSetting
from cq.cli.demos.harness import Steps, check, compare
from cq.cli.demos.visits.replay import KEYS, ReplayClock, ReplayedFormat, is_bot
from cq.config.window import milliseconds
from cq.encoding import codec
from cq.intake.access_log import AccessLogFormat, Visit
from cq.intake.lines import AddedLines
from cq.keys import QueueKeys, below
from cq.observers.sessions import DAY, SessionCounts, Sessions, day_name
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.trending import trending
from cq.observers.visits import VisitLog, VisitorIds, Visits
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact
from cq.windows import Window

NAME: Final = "demo_visits"
SITE: Final = "*"
"""The name of the whole site, in sketches and tables."""
SIZE: Final = "bytes"
TOOK: Final = "seconds"
MEASURES: Final = (SIZE, TOOK)
"""Numbers of responses: sizes in bytes, times in seconds."""
PERIOD: Final = "5m"
PERIOD_SECONDS: Final = 300
_PERIODS: Final = ("1m", PERIOD)
"""Periods of the log's own time."""
START: Final = KEYS + b"start"
"""The key of the real time of the first visit."""
MOST: Final = 500
"""Maximum number of visits that one transaction counts."""
LEFT_OUT: Final = 'left out: sketches of visitors and responses: run `pip install "combine-queue[sketches]"`'
_PACKAGE: Final = "datasketches"
_EVER: Final = 50 * 365 * 86_400
"""Seconds: sessions take the visits of a log that may be old."""


_LATEST: Final = 0.02
_TIMES: Final = 3
_SLACK: Final = 2
"""Visitors beyond the bounds: two with the same hash are counted once, which no bound of a small sketch includes."""
_GAP: Final = 1_800
_RANKS: Final = (0.5, 0.99)


@dataclass(frozen=True)
class TrendingPage:
    """A page of the top of a period.

    Attributes:
        views: in the period.
        rank: 1 plus the number of pages with more views in the period.
        before: the rank in the period before; None without views there.
    """

    page: str
    views: int
    rank: int
    before: int | None


class VisitQueues:
    """All queues of the demo.

    Attributes:
        visits: exact counts of views and visitors, by the real time.
        unique: {page: sketch of all its visitors}.
        responses: {measure: sketch of all its numbers}.
        hits: views of pages by periods of the log's time.
        sessions: sessions by days of the log's time.
        has_sketches: whether the package for sketches is installed; without it the demo leaves out these two.
        names: of the configured queues, for workers, which also work on their levels.
        possible: the names of all queues, including those that are left out.
    """

    def __init__(self) -> None:
        self.visits = Visits(NAME)
        self.unique = cq.CombineQueue[str, Any](f"{NAME}.unique")
        self.responses = cq.CombineQueue[str, Any](f"{NAME}.responses")
        self.hits = Window[str, int](f"{NAME}.hits")
        self.sessions = Sessions(f"{NAME}.sessions")
        self._levels = [f"{self.hits.name}.{period}" for period in _PERIODS]
        self.has_sketches = find_spec(_PACKAGE) is not None
        self.names = [*self.visits.queues, self.hits.name, *self.sessions.queues]
        self.possible = [*self.names, self.unique.name, self.responses.name]
        if self.has_sketches:
            self.names = self.possible

    def configure(self, db: Database, *, window: WindowSetting, buckets: int) -> None:
        """Create the queues."""
        self.visits.configure(db, window=window, buckets=buckets)
        # Nothing expires: the times of a log may be long ago.
        cq.configure(db, self.hits.name, key=str, rollup=dict.fromkeys(_PERIODS, "forever"), buckets=buckets)
        put_observer(db, self._levels[-1], top(ranks=True, group=LAST_PART))
        self.sessions.configure(db, late=_EVER, buckets=buckets)
        if self.has_sketches:
            cq.configure(db, self.unique.name, key=str, combiner="distinct", buckets=buckets)
            cq.configure(db, self.responses.name, key=str, combiner="quantiles", buckets=1)

    def count(self, tr: Transaction, visits: Sequence[Visit], ids: VisitorIds) -> None:
        """Count visits by the time of the log, in all queues but `visits`."""
        seen = [(visit.page, ids.of(visit.visitor, visit.time)) for visit in visits]
        if self.has_sketches:
            visitors: defaultdict[str, list[str]] = defaultdict(list)
            for page, visitor in seen:
                for each in (page, SITE):
                    visitors[each].append(visitor)
            self.unique.add(tr, visitors)
            self.responses.add(tr, measures(visits))
        self.hits.add_each(tr, [(visit.page, 1, visit.time) for visit in visits])
        self.sessions.add(tr, [(id_, visit.time) for (_, id_), visit in zip(seen, visits, strict=True)])

    def lifetime(self, db: Database) -> dict[str, int]:
        """{page: all its views}, with `SITE`."""
        views = {page: number for page, number in self.visits.lifetime.scan(db) if page}
        site = transact(db, lambda tr: self.visits.site(tr.snapshot)).lifetime
        return views | ({SITE: site} if site else {})

    def trending(self, tr: TransactionRead, period: int, limit: int) -> tuple[TrendingPage, ...]:
        """The most viewed pages of a period, as far as workers have combined."""
        entries = trending(tr, self.hits.name, by=PERIOD, at=period, limit=limit)
        return tuple(TrendingPage(*entry) for entry in entries)

    def are_hits_combined(self, tr: TransactionRead) -> bool:
        """Whether workers have combined all views by periods."""
        return _are_combined(tr, [self.hits.name, *self._levels])

    def sessions_now(self, tr: TransactionRead) -> SessionCounts | None:
        """All sessions; None unless workers have combined all visits."""
        return self.sessions.get(tr) if _are_combined(tr, self.sessions.queues) else None

    def sketches(self, tr: TransactionRead, pages: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """{page: sketch or None} of these pages, and {measure: sketch or None}, with queued updates.

        Empty without the package for sketches.
        """
        if not self.has_sketches:
            return {}, {}
        unique = {page: self.unique.get(tr, page, pending=True) for page in pages}
        return unique, {measure: self.responses.get(tr, measure, pending=True) for measure in MEASURES}


def _are_combined(tr: TransactionRead, names: Iterable[str]) -> bool:
    rows = [tr.get_range(*QueueKeys(name).notifications(), limit=1) for name in names]
    return not any(each.to_list() for each in rows)


def measures(visits: Iterable[Visit]) -> dict[str, list[float]]:
    """{measure: its numbers} of the responses to visits; a measure that the log lacks is missing."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for visit in visits:
        for measure, number in ((SIZE, visit.size), (TOOK, visit.took)):
            if number is not None:
                found[measure].append(number)
    return dict(found)


# The followers


def run_follower(stop: Event, *, url: str, log: Steps, pace: ReplayClock) -> None:
    """Count the visits in a web server's log; `pace` is the clock without its start.

    The transaction that counts also stores the position: so a restarted follower continues there.
    """
    db, queues = cq.open(url), VisitQueues()
    with closing(VisitLog(queues.visits).follow(db, log.path, name=log.path.name)) as follower:
        # The existence of the number says that this follower is ready: it knows the log before the first rotation.
        transact(db, lambda tr: log.advance(tr, log.done(tr)))
        while (start := transact(db, lambda tr: tr.get(START).value)) is None:
            if stop.wait(_LATEST):
                return  # without a start there is nothing to count
        ids = queues.visits.ids(db)
        # By the real time, as in production.
        real = ReplayedFormat(replace(pace, start=codec.decode(start)))
        visit_log = VisitLog(queues.visits, real, ids=ids)

        def add(tr: Transaction, lines: Sequence[bytes], once: bytes | None) -> AddedLines:
            added = visit_log(tr, lines[:MOST])
            read = map(AccessLogFormat().parse, lines[:MOST])
            visits = [visit for visit in read if visit is not None and not is_bot(visit)]
            queues.count(tr, visits, ids)
            place = log.done(tr)
            if added.outside:
                # They came after the end of their window, and the recount must not expect them there.
                order = sorted(range(len(visits)), key=lambda number: visits[number].time)
                late = [place + number for number in order[: added.outside]]
                tr.set(_late(log) + b"%012d" % place, codec.encode(late))
            log.advance(tr, place + len(visits))
            return added

        while transact(db, log.done) < log.number and not stop.is_set():
            if follower.add_next(add) is None:
                stop.wait(_LATEST)


def _late(log: Steps) -> bytes:
    """The prefix of a server's notes of late visits: a key ends with the position before their transaction."""
    return log.key + b"/late/"


def read_late(tr: TransactionRead, servers: Sequence[Steps]) -> set[tuple[int, int]]:
    """(server, place) of the visits that were counted after the end of their window."""
    return {
        (number, place)
        for number, log in enumerate(servers)
        for row in tr.get_range(*below(_late(log)))
        for place in codec.decode(row.value)
    }


# The recount


@dataclass(frozen=True)
class VisitorEstimate:
    """The distinct visitors of a page: exact, and by a sketch.

    Attributes:
        error_percent: difference of the estimate from the exact number.
    """

    page: str
    visitors: int
    estimate: int
    error_percent: float


@dataclass(frozen=True)
class ResponseNumbers:
    """The quantiles of sizes or times of responses: exact, and by a sketch."""

    measure: str
    responses: int
    p50: float
    p50_estimate: float
    p99: float
    p99_estimate: float


class VisitRecount:
    """The counts that the queues must have after some visits. All `check` methods raise `DemoDiffers`.

    Args:
        parts: the visits of each server, in order.

    Attributes:
        views: {page: all its views}, with the page `SITE` for the whole site.
        readers: {page: all its visitors}, with `SITE`.
        numbers: {measure: its numbers, ascending}.
        periods: {start of a period of the log's time: {page: its views}}.
    """

    def __init__(self, parts: Sequence[Sequence[Visit]]) -> None:
        self._parts = parts
        self._places = [0] * len(parts)
        self._inside: list[tuple[int, str, tuple[int, str]]] = []
        self.views: Counter[str] = Counter()
        self.readers: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        self.numbers: defaultdict[str, list[float]] = defaultdict(list)
        self.periods: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._times: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        self._sessions: dict[tuple[int, str], SessionCounts] = {}

    def advance(self, places: Sequence[int], late: Collection[tuple[int, int]], pace: ReplayClock) -> None:
        """Recount the visits up to these positions.

        Args:
            places: the number of counted visits of each server.
            late: (server, place) of the visits that are in no window.
            pace: the clock of the replay.
        """
        spec = pace.spec
        for number, (begin, end) in enumerate(zip(self._places, places, strict=True)):
            visits = self._parts[number][begin:end]
            for place, visit in enumerate(visits, begin):
                if (number, place) not in late:
                    at = pace.at(visit.time)
                    visitor = visitor_of(visit._replace(time=at))
                    self._inside.append((spec.expires(milliseconds(at)), visit.page, visitor))
            for visit in visits:
                self.periods[period_of(visit.time)][visit.page] += 1
                self._times[visitor_of(visit)].append(int(visit.time))
                self._sessions.pop(visitor_of(visit), None)
                for page in (SITE, visit.page):  # the site first, also of pages with equal views
                    self.views[page] += 1
                    self.readers[page].add(visitor_of(visit))
            for measure, numbers in measures(visits).items():
                self.numbers[measure] += numbers
        for ascending in self.numbers.values():
            ascending.sort()
        self._places = list(places)

    def check_window(self, found: Mapping[str, tuple[int, int]], now: int) -> None:
        """Check {page: (views, visitors)} of the window at a time in milliseconds; it must not decrease."""
        self._inside = [each for each in self._inside if each[0] > now]
        views: Counter[str] = Counter()
        visitors: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
        for _, page, visitor in self._inside:
            for each in (page, SITE):
                views[each] += 1
                visitors[each].add(visitor)
        compare("at a look", found, {page: (views[page], len(visitors[page])) for page in views})

    def sessions(self) -> dict[str, SessionCounts]:
        """{day: its sessions}."""
        for visitor in self._times.keys() - self._sessions.keys():
            self._sessions[visitor] = _sessions_of(sorted(self._times[visitor]))
        days: defaultdict[int, list[SessionCounts]] = defaultdict(list)
        for (day, _), counts in self._sessions.items():
            days[day].append(counts)
        return {day_name(DAY * day): _total(days[day]) for day in sorted(days)}

    def check_sessions(self, found: SessionCounts) -> None:
        """Check the sessions of all days."""
        compare("sessions", {"all": found}, {"all": _total(self.sessions().values())})

    def check_trending(self, start: int, found: Sequence[TrendingPage], limit: int) -> None:
        """Check that these are the first `limit` pages of a period; equal ones may be in any order."""
        views, earlier = (self.periods.get(each, Counter()) for each in (start, start - PERIOD_SECONDS))
        what, by_page = f"trending pages of the period at {start}", {each.page: each for each in found}
        most = sorted(views.values(), reverse=True)[:limit]
        compare(what, {"views": [each.views for each in by_page.values()]}, {"views": most})
        recounted = {
            page: TrendingPage(page, views[page], _rank(views, page) or 0, _rank(earlier, page))
            for page in by_page
        }
        compare(what, by_page, recounted)

    def check_visitors(self, found: Mapping[str, Any]) -> tuple[VisitorEstimate, ...]:
        """Check {page: sketch of its visitors, or None without visitors}; returns the estimates."""
        sketches = {page: sketch for page, sketch in found.items() if sketch is not None}
        wanted = [page for page in found if self.readers.get(page)]
        compare("pages with a sketch of visitors", dict.fromkeys(sketches, 1), dict.fromkeys(wanted, 1))
        return tuple(self._estimate(page, sketch) for page, sketch in sketches.items())

    def _estimate(self, page: str, sketch: Any) -> VisitorEstimate:
        exact, estimate = len(self.readers[page]), sketch.estimate
        lowest, highest = (_TIMES * (bound - estimate) for bound in (sketch.lower, sketch.upper))
        check(
            lowest - _SLACK <= exact - estimate <= highest + _SLACK,
            f"distinct visitors of {page!r}: a sketch estimates {estimate:,} ({sketch.lower:,} to {sketch.upper:,}) "
            f"instead of {exact:,}",
        )
        return VisitorEstimate(page, exact, estimate, round(100 * (estimate - exact) / exact, 2))

    def check_responses(self, found: Mapping[str, Any]) -> tuple[ResponseNumbers, ...]:
        """Check {measure: sketch of its numbers, or None without numbers}; returns the quantiles."""
        sketches = {measure: sketch for measure, sketch in found.items() if sketch is not None}
        compare(
            "number, minimum and maximum of responses",
            {measure: (each.count, each.minimum, each.maximum) for measure, each in sketches.items()},
            {name: (len(each), each[0], each[-1]) for name, each in self.numbers.items() if name in found},
        )
        return tuple(self._quantiles(measure, sketch) for measure, sketch in sketches.items())

    def _quantiles(self, measure: str, sketch: Any) -> ResponseNumbers:
        ascending, figures = self.numbers[measure], []
        for rank in _RANKS:
            estimate, error = sketch.quantile(rank), _TIMES * sketch.rank_error
            lowest = bisect_left(ascending, estimate) / len(ascending)
            highest = bisect_right(ascending, estimate) / len(ascending)
            check(
                lowest - error <= rank <= highest + error,
                f"{measure} of responses: a sketch has {estimate:,} at the rank {rank}, and {lowest:.4f} to "
                f"{highest:.4f} of {len(ascending):,} responses have less",
            )
            # The smallest number that at least this share of all numbers does not exceed.
            figures += [ascending[ceil(rank * len(ascending)) - 1], estimate]
        return ResponseNumbers(measure, len(ascending), *figures)


def _rank(views: Mapping[str, int], page: str) -> int | None:
    """1 plus the number of pages with more views; None for a page without views."""
    own = views.get(page)
    return None if own is None else 1 + sum(number > own for number in views.values())


def _sessions_of(times: Sequence[int]) -> SessionCounts:
    """The sessions of one visitor on a day, from the times of its visits in order."""
    begins = [number for number, at in enumerate(times) if not number or at - times[number - 1] >= _GAP]
    ends = [*begins[1:], len(times)]
    return SessionCounts(
        sessions=len(begins),
        bounces=sum(end - begin == 1 for begin, end in zip(begins, ends, strict=True)),
        visits=len(times),
        seconds=sum(times[end - 1] - times[begin] for begin, end in zip(begins, ends, strict=True)),
    )


def _total(counts: Iterable[SessionCounts]) -> SessionCounts:
    return SessionCounts(*map(sum, zip(*map(astuple, counts), strict=True)))


def visitor_of(visit: Visit) -> tuple[int, str]:
    """The visitor on the day of the visit: on another day it counts as another one."""
    return int(visit.time // DAY), visit.visitor


def period_of(time: float) -> int:
    """The start of the period of a time of the log."""
    return int(time // PERIOD_SECONDS) * PERIOD_SECONDS
