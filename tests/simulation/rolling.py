"""The system of roll-ups: hits at once and late, in a queue with levels that are derived from each other and expire.

The model has each committed hit with its time. Now and then, and at the end, each period that cannot have expired must
have the combination of just its hits: in its level, and in the updates that wait in this level or in a finer one. A
period that has expired may have other values, of late hits, until it expires again. The last level is kept for ever.
Observers refuse the deletions of some periods for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from zlib import crc32

import cq
from cq.admin.purge import is_purging
from cq.config.rollup import RollUp, RollUpLevel
from cq.observers.verify.queue import verification
from cq.passes.plan import Limits
from cq.queue.missed_reports import retry_missed
from tests.helpers import configured
from tests.simulation.application import Raised
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount

HITS: Final = "hits"
_ROLLUPS: Final = ("2s:6s,10s:30s,60s:forever", "5s:20s,20s:forever", "3s:forever,60s:forever")
_REFUSALS: Final = "observers refuse keys"
_LATE_SECONDS: Final = 120
"""How long after its time a period is deleted at the latest, by workers without faults."""
_COMBINED: Final[dict[str, Callable[[list[int]], int]]] = {"sum": sum, "maximum": max}


@dataclass(frozen=True)
class Hit:
    """A transaction has added hits."""

    updates: tuple[tuple[str, int], ...]
    once: str | None
    at: float


class Hits(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (HITS,)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.rollup = RollUp.parse(self.rng.choice(_ROLLUPS))
        self.combiner = self.rng.choice(list(_COMBINED))
        self.hits: list[Hit] = []
        self.limits = Limits(
            read_bytes=self.rng.choice((100, 2_000, 240_000)), max_report=self.rng.choice((1, 3, 1_000))
        )

    @property
    def names(self) -> tuple[str, ...]:
        return (HITS, *self._levels)

    @property
    def _levels(self) -> list[str]:
        return [level.queue_of(HITS) for level in self.rollup.levels]

    def make(self) -> None:
        buckets = self.rng.randint(1, 3)
        configured(self.inner, HITS, combiner=self.combiner, buckets=buckets, rollup=self.rollup)
        for name in self._levels if _REFUSALS in self.plan else ():
            self.app().configure(self.inner, name)

    def app(self) -> cq.App:
        """Observers of the levels that refuse deletions."""
        app = cq.App()
        for name in self._levels if _REFUSALS in self.plan else ():
            app.queue(name, observers=[cq.Observer("refusing", 1, self._refuse)])
        return app

    def _refuse(self, tr: Any, changes: list[cq.Change]) -> None:
        """Half of the time, refuse the deletions of every other period."""
        is_refusing = not self.is_calm and self.hub.clock % 20 < 10
        if is_refusing and any(each.new is None and crc32(repr(each.key).encode()) % 2 for each in changes):
            raise Raised("an observer of a level")

    def drawn(self) -> Hit:
        rng = self.hub.rng
        updates = tuple((rng.choice("pq"), rng.randint(1, 5)) for _ in range(rng.randint(1, 2)))
        offset = rng.uniform(-25, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        return Hit(updates, self.new_operation(), self.now + offset)

    def write(self, tr: Any, drawn: Hit) -> Hit | None:
        is_taken = cq.Series(HITS).add(tr, drawn.updates, drawn.once, at=drawn.at) == "taken"
        return drawn if is_taken else None

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {_REFUSALS: lambda name: [retry_missed(db, each) for each in self.names]}

    def count(self, note: Hit | Purged, version: int) -> None:
        if isinstance(note, Purged):
            self.hits.clear()
        else:
            self.hits.append(note)

    def look(self) -> None:
        """Raises `Violation` unless each period that is kept has its hits, with those that wait in finer levels."""
        if is_purging(self.inner, HITS):
            return
        waiting: dict[Any, list[int]] = {}
        for level, name in zip(self.rollup.levels, self._levels, strict=True):
            waiting = _by_period(level.period, waiting)
            for key, updates in self.waiting(name).items():
                waiting.setdefault(key, []).extend(updates)
            found = {key: [value] for key, value in self.stored(name).items()}
            for key, updates in waiting.items():
                found.setdefault(key, []).extend(updates)
            combined = {key: _COMBINED[self.combiner](some) for key, some in found.items()}
            self._compare(name, self._kept(level, combined), self._kept(level, self._expected(level.period)))

    def _kept(self, level: RollUpLevel, periods: dict[Any, int]) -> dict[Any, int]:
        """The periods that no worker may have deleted, by whatever clock."""
        over = self.now + self.skew - (level.retention or 1e12)
        return {key: value for key, value in periods.items() if key[1] > over}

    def left(self) -> str:
        for level, name in zip(self.rollup.levels, self._levels, strict=True):
            over = self.now - (level.retention or 1e12) - _LATE_SECONDS
            if any(start < over for _, start in self.stored(name)):
                return f"periods of {level} that must expire"
        return super().left()

    def check(self) -> None:
        """Raises `Violation` unless the queue and its levels have the hits of each period."""
        totals = {key: total for (key, _), total in self._expected(1 << 40).items()}
        self._compare(HITS, self.stored(HITS), totals)
        self.look()
        for level, name in zip(self.rollup.levels, self._levels, strict=True):
            if extra := self.stored(name).keys() - self._expected(level.period).keys():
                raise Violation(f"{name} has {extra}, and there was no such hit")
            if wrong := list(verification(self.inner, name).run()):
                raise Violation(f"verification finds {wrong[0]}")

    def _expected(self, period: int) -> dict[Any, int]:
        """{(key, start of a period): combination of its hits}."""
        numbers: dict[Any, list[int]] = {}
        for hit in self.hits:
            for key, number in hit.updates:
                numbers.setdefault((key, _seconds(hit.at)), []).append(number)
        return {key: _COMBINED[self.combiner](some) for key, some in _by_period(period, numbers).items()}

    def _compare(self, name: str, found: dict[Any, int], wanted: dict[Any, int]) -> None:
        if found != wanted:
            raise Violation(f"{name} has {found}, and the hits are {wanted}")


def _by_period(period: int, updates: dict[Any, list[int]]) -> dict[Any, list[int]]:
    """The updates of longer periods."""
    found: dict[Any, list[int]] = {}
    for (key, start), some in updates.items():
        found.setdefault((key, start // period * period), []).extend(some)
    return found


def _seconds(time: float) -> int:
    """The whole second of a time: cq rounds up to milliseconds before."""
    return _milliseconds(time) // 1000


def _milliseconds(time: float) -> int:
    """Milliseconds, rounded up; what a float of today's seconds cannot represent is dropped."""
    return -int(-round(time * 1000, 3) // 1)
