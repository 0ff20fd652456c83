"""The system of roll-ups: hits at once and late, in a queue with levels that are derived from each other and expire.

The model has each committed hit with its time. Now and then, and at the end, each period that cannot have expired must
have the combination of just its hits: in its level, and in the updates that wait in this level or, if workers derive
the level, in a finer one. A period that has expired, under the present retention or a former one, may have other
values, of late hits, until it expires again. The last level is kept for ever. Observers refuse the deletions of some
periods for a while. Hits may be 0 or negative, so a sum of 0 deletes a period and a maximum of 0 does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from zlib import crc32

import cq
from cq.admin.purge import is_purging
from cq.config.queue import read_config
from cq.config.rollup import RollUp
from cq.observers.verify.queue import verification
from cq.passes.plan import Limits
from cq.queue.missed_reports import retry_missed
from tests.helpers import configured
from tests.simulation.application import Raised
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount
from tests.simulation.store import CommitRequest

HITS: Final = "hits"
_ROLLUPS: Final = ("2s:6s,10s:30s,60s:forever", "5s:20s,20s:forever", "3s:forever,60s:forever")
_REFUSALS: Final = "observers refuse keys"
_LATE_SECONDS: Final = 120
"""How long after its time a period is deleted at the latest, by workers without faults."""
_COMBINED: Final[dict[str, Callable[[list[int]], int]]] = {"sum": sum, "maximum": max, "largest": max}
_LARGEST: Final = cq.Combiner("largest", 1, lambda key, values: max(values))
"""A combiner of the application has no differences, so each add writes all levels."""


@dataclass(frozen=True)
class Hit:
    """A transaction has added hits."""

    updates: tuple[tuple[str, int], ...]
    once: str | None
    at: float


class Hits(Recount):
    """One run.

    Attributes:
        over: for each level, the latest start of a period that a worker may have deleted so far.
    """

    queues: ClassVar[tuple[str, ...]] = (HITS,)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        # Only short periods are deleted, and so refused, often enough.
        self.rollup = RollUp.parse(_ROLLUPS[0] if _REFUSALS in plan else self.rng.choice(_ROLLUPS))
        self.combiner = self.rng.choice(list(_COMBINED))
        self.hits: list[Hit] = []
        self.over = [-math.inf] * len(self.rollup.levels)
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
        combiner = _LARGEST if self.combiner == _LARGEST.name else self.combiner
        configured(self.inner, HITS, combiner=combiner, buckets=buckets, rollup=self.rollup)
        for name in self._levels if _REFUSALS in self.plan else ():
            self.app().configure(self.inner, name)

    def app(self) -> cq.App:
        """Observers of the levels that refuse deletions, and the application's combiner."""
        app = cq.App()
        if self.combiner == _LARGEST.name:
            app.queue(HITS, combiner=_LARGEST)
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
        numbers = (-3, 2) if "opposite" in self.plan else (1, 5)
        updates = tuple((rng.choice("pq"), rng.randint(*numbers)) for _ in range(rng.randint(1, 2)))
        offset = rng.uniform(-25, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        return Hit(updates, self.new_operation(), self.now + offset)

    def write(self, tr: Any, drawn: Hit) -> Hit | None:
        is_taken = cq.Series(HITS).add(tr, drawn.updates, drawn.once, at=drawn.at) == "taken"
        return drawn if is_taken else None

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {
            _REFUSALS: lambda name: [retry_missed(db, each) for each in self.names],
            "retention": lambda name: self._change_retentions(db),
        }

    def _change_retentions(self, db: Any) -> None:
        """Keep the periods of the levels longer or shorter, at least as long as in the beginning."""
        factor = self.hub.rng.choice((1, 2, 3))
        changed = [
            level._replace(retention=level.retention and level.retention * factor)
            for level in self.rollup.levels
        ]
        cq.configure(db, HITS, rollup=RollUp(tuple(changed)))

    def _retentions(self) -> list[float]:
        """The present retention of each level, in seconds."""
        rollup = read_config(self.inner.create_transaction().snapshot, HITS).rollup
        return [math.inf if level.retention is None else level.retention for level in rollup.levels]  # type: ignore[union-attr]

    def committed(self, tr: CommitRequest) -> None:
        """Note what workers may have deleted."""
        latest = [self.now + self.skew - seconds for seconds in self._retentions()]
        self.over = list(map(max, self.over, latest))

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
        for level, name, over in zip(self.rollup.levels, self._levels, self.over, strict=True):
            waiting = _by_period(level.period, waiting) if self._is_derived else {}
            for key, updates in self.waiting(name).items():
                waiting.setdefault(key, []).extend(updates)
            found = {key: [value] for key, value in self.stored(name).items()}
            for key, updates in waiting.items():
                found.setdefault(key, []).extend(updates)
            kept, expected = (
                {key: value for key, value in periods.items() if key[1] > over}
                for periods in (self._combined(found), self._expected(level.period))
            )
            self._compare(name, kept, expected)

    @property
    def _is_derived(self) -> bool:
        """Whether workers derive each level from the next finer one."""
        return self.combiner != _LARGEST.name

    def left(self) -> str:
        for name, seconds in zip(self._levels, self._retentions(), strict=True):
            if any(start < self.now - seconds - _LATE_SECONDS for _, start in self.stored(name)):
                return f"periods of {name} that must expire"
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
        return self._combined(_by_period(period, numbers))

    def _combined(self, numbers: Mapping[Any, list[int]]) -> dict[Any, int]:
        """The combination of each key's numbers; a sum of 0 is no value."""
        found = {key: _COMBINED[self.combiner](some) for key, some in numbers.items()}
        return {key: value for key, value in found.items() if value or self.combiner != "sum"}

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
