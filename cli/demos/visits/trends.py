"""The trending pages of the demo: the most viewed pages of a period of the log, with their ranks in the one before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cq.cli.demos.harness.demo import compare
from cq.cli.demos.visits.access_log import Visit

PERIOD: Final = "5m"
PERIOD_SECONDS: Final = 300
SHORTEST: Final = 60
ROLLUP: Final = f"1m:forever,{PERIOD}:forever"
"""Periods of the log's own time; nothing expires, because the times of a log may be long ago."""


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


class PeriodViews:
    """The views of each page by periods, recounted from the log."""

    def __init__(self) -> None:
        self._views: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def count(self, visits: Iterable[Visit]) -> None:
        """Count visits under their own times."""
        for visit in visits:
            self._views[period_of(visit.time)][visit.page] += 1

    @property
    def periods(self) -> list[int]:
        """The starts of all periods with views, in seconds since 1970."""
        return sorted(self._views)

    def check(self, start: int, found: Sequence[TrendingPage], limit: int) -> None:
        """Raise `DemoDiffers` unless these are the first `limit` pages of a period; equal ones may be in any order."""
        views, earlier = (self._views.get(each, Counter()) for each in (start, start - PERIOD_SECONDS))
        what = f"trending pages of the period at {start}"
        most = sorted(views.values(), reverse=True)[:limit]
        compare(what, {"views": [each.views for each in found]}, {"views": most})
        compare(what, {"pages": len({each.page for each in found})}, {"pages": len(most)})
        recounted = {
            each.page: (views.get(each.page), rank(views, each.page), rank(earlier, each.page))
            for each in found
        }
        compare(what, {each.page: (each.views, each.rank, each.before) for each in found}, recounted)


def rank(views: Mapping[str, int], page: str) -> int | None:
    """1 plus the number of pages with more views; None for a page without views."""
    own = views.get(page)
    return None if own is None else 1 + sum(number > own for number in views.values())


def period_of(time: float) -> int:
    """The start of the period of a time of the log."""
    return int(time // PERIOD_SECONDS) * PERIOD_SECONDS
