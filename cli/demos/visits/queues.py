"""The queues of the demo of visits, and all that a look reads of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import cq
from cq.admin.configure import put_observer
from cq.admin.configured_queue import WindowSetting
from cq.intake.access_log import Visit
from cq.keys import QueueKeys
from cq.observers.sessions import SessionCounts, Sessions
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.trending import trending
from cq.observers.visits import VisitorIds, Visits
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
LEFT_OUT: Final = 'left out: sketches of visitors and responses: run `pip install "combine-queue[sketches]"`'
_PACKAGE: Final = "datasketches"
_EVER: Final = 50 * 365 * 86_400
"""Seconds: sessions take the visits of a log that may be old."""


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
