"""The queues of the demo of visits: exact counts, and sketches of visitors and responses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any, Final

import cq
from cq.admin.configure import put_observer
from cq.cli.demos.visits.access_log import Visit
from cq.cli.demos.visits.trends import PERIOD, ROLLUP, SHORTEST, TrendingPage
from cq.config.rollup import RollUp
from cq.keys import QueueKeys
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.trending import trending
from cq.observers.visits import Visits
from cq.store.api import Database, Transaction, TransactionRead

NAME: Final = "demo_visits"
SITE: Final = "*"
"""The page name for the counts of the whole site."""
SIZE: Final = "bytes"
TOOK: Final = "seconds"
MEASURES: Final = (SIZE, TOOK)
"""Numbers of responses: sizes in bytes, times in seconds."""
LEFT_OUT: Final = 'left out: sketches of visitors and responses: run `pip install "combine-queue[sketches]"`'
_PACKAGE: Final = "datasketches"


class VisitQueues:
    """All queues of the demo.

    Attributes:
        visits: exact counts of views and visitors.
        unique: {page: sketch of all its visitors}.
        responses: {measure: sketch of all its numbers}.
        hits: views of pages by periods of the log's time.
        has_sketches: whether the package for sketches is installed; without it the demo leaves out these two.
    """

    def __init__(self) -> None:
        self.visits = Visits(NAME)
        self.unique = cq.CombineQueue[str, Any](f"{NAME}.unique")
        self.responses = cq.CombineQueue[str, Any](f"{NAME}.responses")
        self.hits = cq.Window[str, int](f"{NAME}.hits")
        self.has_sketches = find_spec(_PACKAGE) is not None

    @property
    def possible(self) -> list[str]:
        """The names of all queues, including those that are left out."""
        return [*self.visits.queues, self.hits.name, self.unique.name, self.responses.name]

    @property
    def names(self) -> list[str]:
        """The names of the configured queues, for workers, which also work on their levels."""
        return self.possible if self.has_sketches else [*self.visits.queues, self.hits.name]

    @property
    def _levels(self) -> list[str]:
        return [level.queue_of(self.hits.name) for level in RollUp.parse(ROLLUP).levels]

    def configure(self, db: Database, *, window: object, buckets: int) -> None:
        """Create the queues."""
        self.visits.configure(db, window=window, buckets=buckets)
        cq.configure(db, self.hits.name, key=str, rollup=ROLLUP, buckets=buckets)
        put_observer(db, self._levels[-1], top(ranks=True, group=LAST_PART))
        if self.has_sketches:
            cq.configure(db, self.unique.name, key=str, combiner="distinct", buckets=buckets)
            cq.configure(db, self.responses.name, key=str, combiner="quantiles", buckets=1)

    def count(self, tr: Transaction, visits: Sequence[Visit], at: float) -> str:
        """Count visits of one time, in seconds since 1970; returns the result of `Visits.count_many`."""
        seen = [(page, visit.visitor) for visit in visits for page in (visit.page, SITE)]
        if self.has_sketches:
            visitors: defaultdict[str, list[str]] = defaultdict(list)
            for page, visitor in seen:
                visitors[page].append(visitor)
            self.unique.add(tr, visitors)
            self.responses.add(tr, measures(visits))
        for start, group in groupby(visits, lambda visit: visit.time // SHORTEST * SHORTEST):
            self.hits.add(tr, Counter(visit.page for visit in group), at=start)
        return self.visits.count_many(tr, seen, at=at)

    def trending(self, tr: TransactionRead, period: int, limit: int) -> tuple[TrendingPage, ...]:
        """The most viewed pages of a period, as far as workers have combined."""
        entries = trending(tr, self.hits.name, by=PERIOD, at=period, limit=limit)
        return tuple(TrendingPage(each.key, each.score, each.rank, each.before) for each in entries)

    def are_hits_combined(self, tr: TransactionRead) -> bool:
        """Whether workers have combined all views by periods."""
        names = [self.hits.name, *self._levels]
        rows = [tr.get_range(*QueueKeys(name).notifications(), limit=1) for name in names]
        return not any(each.to_list() for each in rows)

    def unique_now(self, tr: TransactionRead, pages: Sequence[str]) -> dict[str, Any]:
        """{page: sketch or None} of these pages, with queued updates; empty without the package for sketches."""
        return _now(tr, self.unique, pages) if self.has_sketches else {}

    def responses_now(self, tr: TransactionRead) -> dict[str, Any]:
        """{measure: sketch or None}, with queued updates; empty without the package for sketches."""
        return _now(tr, self.responses, MEASURES) if self.has_sketches else {}


def _now(tr: TransactionRead, queue: cq.CombineQueue[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: queue.get(tr, key, pending=True) for key in keys}


def measures(visits: Iterable[Visit]) -> dict[str, list[float]]:
    """{measure: its numbers} of the responses to visits; a measure that the log lacks is missing."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for visit in visits:
        for measure, number in ((SIZE, visit.size), (TOOK, visit.took)):
            if number is not None:
                found[measure].append(number)
    return dict(found)
