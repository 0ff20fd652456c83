"""The recount of the demo of visits: from the log and the positions of the servers, without the store.

Sums and ranks must be equal. Estimates of sketches must be within the bounds that the sketches state, which hold in 95
or 99 of 100 cases. The comparison allows three times their distance, at least six standard deviations, so that it never
fails for sketches of a correct build.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import ceil
from typing import Any, Final

from cq.cli.demos.harness import DemoDiffers, compare
from cq.cli.demos.visits.queues import PERIOD_SECONDS, SITE, TrendingPage, measures
from cq.cli.demos.visits.replay import ReplayClock
from cq.config.window import milliseconds
from cq.intake.access_log import Visit
from cq.observers.sessions import DAY, SessionCounts, day_name

_TIMES: Final = 3
_SLACK: Final = 2
"""Visitors beyond the bounds: two with the same hash are counted once, which no bound of a small sketch includes."""
_GAP: Final = 1_800
_RANKS: Final = (0.5, 0.99)


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
        below, above = (_TIMES * (bound - estimate) for bound in (sketch.lower, sketch.upper))
        if not below - _SLACK <= exact - estimate <= above + _SLACK:
            raise DemoDiffers(
                f"distinct visitors of {page!r}: a sketch estimates {estimate:,} ({sketch.lower:,} to "
                f"{sketch.upper:,}) instead of {exact:,}"
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
            if not lowest - error <= rank <= highest + error:
                raise DemoDiffers(
                    f"{measure} of responses: a sketch has {estimate:,} at the rank {rank}, and {lowest:.4f} to "
                    f"{highest:.4f} of {len(ascending):,} responses have less"
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
