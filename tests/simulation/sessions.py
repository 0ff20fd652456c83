"""The system of sessions: visits of a few visitors today and yesterday, in any order, and their sessions.

A model that shares no code with cq has each visit that was committed, and sorts them. At each look, the sums, with what
is queued for them, and with the difference that the queued visits will make, must be those of the model. The visits of
yesterday are refused from a moment of the run on, and later the intervals of yesterday's visitors are deleted. At the
end each day must have its sums.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

import cq
from cq import runtime
from cq.combiners import BUILT_IN
from cq.observers.sessions import SITE, Sessions
from cq.observers.visits import VisitorIds
from tests.simulation.hub import START_NS
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Recount
from tests.simulation.scenario import check_verified
from tests.simulation.store import CommitRequest

SUMS: Final = "sessions"
VISITORS: Final = f"{SUMS}.visitors"
SALTS: Final = f"{SUMS}.salts"
_DAY: Final = 86_400
_START: Final = START_NS // 10**9
_TODAY: Final = _START // _DAY * _DAY
_LATE: Final = _START + 8 - _TODAY
"""Yesterday's visits are refused 8 s after the begin of a run."""
_MARGIN: Final = 150
"""And its visitors deleted so many seconds later, in which no process stands still but in plans with long freezes."""
_GAP: Final = 60
_MEASURES: Final = ("sessions", "bounces", "visits", "seconds", "refused")


@dataclass(frozen=True)
class Visited:
    """A transaction adds visits of visitors, and with them `refused`, each with its time."""

    visits: tuple[tuple[str, int], ...]
    refused: tuple[int, ...]
    once: str | None


class VisitorSessions(Recount):
    """One run.

    Attributes:
        visits: (visitor, time) of all visits that were taken.
        late: times of the others.
        is_certain: whether no visit of yesterday may come after what it joins is deleted: as it was set aside, or as a
            process stood still between its look at the clock and its commit.
    """

    queues: ClassVar[tuple[str, ...]] = (VISITORS,)
    max_skew: ClassVar[float] = 2.0

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.sessions = Sessions(SUMS)
        self.visits: list[tuple[str, int]] = []
        self.late: list[int] = []
        self._visitor_ids: dict[Any, VisitorIds] = {}
        self._known: dict[tuple[str, int], str] = {}
        self._lost: set[str] = set()  # days whose salts were set aside
        self.is_certain = "long freezes" not in plan

    @property
    def names(self) -> tuple[str, ...]:
        return (VISITORS, SUMS, f"{SUMS}.1d", *([SALTS] if "ids" in self.plan else []))

    @contextmanager
    def around(self) -> Iterator[None]:
        with super().around(), patch("cq.observers.sessions._MARGIN", _MARGIN):
            yield

    def make(self) -> None:
        self.sessions.configure(self.inner, gap=_GAP, late=_LATE, buckets=self.rng.randint(1, 3))
        if "ids" in self.plan:
            cq.configure(self.inner, SALTS, key=str, value=bytes, combiner="first", buckets=1)

    def drawn(self) -> Visited:
        """Visits at times of the last ten minutes, or of the same ones yesterday."""
        rng = self.hub.rng
        visits = (
            (rng.choice("abc"), rng.randint(-600, 0) - rng.choice((0, _DAY)))
            for _ in range(rng.choice((1, 1, 2, 4)))
        )
        return Visited(tuple(visits), (), self.new_operation())

    def write(self, tr: Any, drawn: Visited) -> Visited:
        now = runtime.time()
        visits = [
            (self._id(tr.db, visitor, int(now) + offset), int(now) + offset)
            for visitor, offset in drawn.visits
        ]
        limit = _TODAY + _LATE
        taken = tuple(each for each in visits if now < limit or each[1] >= _TODAY)
        refused = tuple(at for visitor, at in visits if (visitor, at) not in taken)
        if self.sessions.add(tr, visits, drawn.once, now=now) != len(refused):
            raise Violation(f"of {visits}, not {len(refused)} are refused")
        return Visited(taken, refused, drawn.once)

    def _id(self, db: Any, visitor: str, at: int) -> str:
        """The id of a visitor, which must be the same for all processes; without salts the visitor."""
        if "ids" not in self.plan:
            return visitor
        found = self._visitor_ids.setdefault(db, VisitorIds(db, SUMS)).of(visitor, at)
        known = self._known.setdefault((visitor, at // _DAY), found)
        if f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" in self._lost:
            return known  # its salt was set aside, and so another one was drawn
        if found != known or list(self._known.values()).count(found) > 1:
            raise Violation(f"{visitor} has the id {found}, of {self._known}")
        return found

    # What is committed

    def count(self, note: Visited, version: int) -> None:
        self.visits += note.visits
        self.late += note.refused

    def committed(self, tr: CommitRequest) -> None:
        self.is_certain &= not any(day < _TODAY for _, day in self.aside(VISITORS))
        if "ids" in self.plan:
            self._lost.update(self.aside(SALTS))

    def look(self) -> None:
        """Raises `Violation` unless what is stored and queued is that of the visits."""
        found: Counter[str] = Counter()
        for sums in self.parts(SUMS).get(SITE, ()):
            found.update(sums)
        stored = self.stored(VISITORS)
        for key, parts in self.parts(VISITORS).items():
            found.update(_measured(BUILT_IN["intervals"].combine(key, parts)))
            found.subtract(_measured(stored.get(key, ())))
        self._compare("all", found, _expected(self.visits, self.late))
        read = self.sessions.get(self.inner.create_transaction().snapshot)
        if not self.aside(SUMS) and not 0 <= read.bounces <= read.sessions <= read.visits:
            raise Violation(f"the sums are not those of one moment: {read}")

    def _compare(self, what: str, found: Counter[str], expected: Counter[str]) -> None:
        measures = _MEASURES if self.is_certain else ("visits", "refused")
        if any(found[measure] != expected[measure] for measure in measures):
            raise Violation(f"{what}: the sums are {found}, and expected are {expected}")

    # The end

    def left(self) -> str:
        """Workers delete the visitors of yesterday, too."""
        yesterday = [key for key in self.stored(VISITORS) if key[-1] < _TODAY]
        return super().left() or (f"visitors {yesterday}" if yesterday else "")

    def check(self) -> None:
        """Raises `Violation` unless each day has the sums of its visits, and `cq verify` finds nothing."""
        self.look()
        last = max(2 * _DAY, int(self.now) - _TODAY + _DAY)
        days = self.sessions.days(self.inner.create_transaction().snapshot, last=last)
        for day, found in days.items():
            visits = [each for each in self.visits if _is_on(each[1], day)]
            refused = [at for at in self.late if _is_on(at, day)]
            self._compare(
                day, Counter({each: getattr(found, each) for each in _MEASURES}), _expected(visits, refused)
            )
        for name in self.names:
            check_verified(self.inner, name)


def _expected(visits: Iterable[tuple[str, int]], refused: list[int]) -> Counter[str]:
    """The sums of visits, by sorting them."""
    sums = Counter({"refused": len(refused)})
    by_visitor = defaultdict[tuple[str, int], list[int]](list)
    for visitor, at in visits:
        by_visitor[visitor, at // _DAY].append(at)
    for times in by_visitor.values():
        times.sort()
        first = [number for number, at in enumerate(times) if not number or at - times[number - 1] >= _GAP]
        for begin, end in zip(first, [*first[1:], len(times)], strict=True):
            sums["sessions"] += 1
            sums["bounces"] += end - begin == 1
            sums["visits"] += end - begin
            sums["seconds"] += times[end - 1] - times[begin]
    return sums


def _measured(intervals: Iterable[Any]) -> Counter[str]:
    """The sums of stored intervals."""
    sums: Counter[str] = Counter()
    for begin, end, number in intervals:
        sums.update(sessions=1, bounces=int(number == 1), visits=number, seconds=end - begin - _GAP)
    return sums


def _is_on(at: int, day: str) -> bool:
    return str(datetime.fromtimestamp(at, UTC).date()) == day
