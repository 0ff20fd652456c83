"""The system of the windows: visits of pages by visitors, at once, late and from the future, and what counts of them.

A model that shares no code with cq has each visit that was committed, and when it is to leave. Who is in the window is
told by the rows that are there: at each look the totals must be the sums of just these visits, no visit may have left
too early, and the distinct visitors must be those that have a total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.admin.purge import is_purging
from cq.config.queue import read_config
from cq.keys import version_of
from cq.keys.missed import MissedKeys
from cq.keys.window import WindowKeys
from cq.observers.distinct import distinct
from cq.passes.plan import Limits
from cq.store.transact import transact
from cq.verify.queue import verify
from tests.helpers import configured, put_built_in
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount

SEEN: Final = "seen"
VISITORS: Final = "visitors"
_WINDOWS: Final = ((10, 1), (30, 5), (2, 0.5))

Key = tuple[str, str]


@dataclass(frozen=True)
class Visits:
    """Visits to be added, at a time of their own."""

    updates: tuple[tuple[Key, int], ...]
    once: str | None


@dataclass(frozen=True)
class Visited:
    """A transaction has added visits.

    Attributes:
        leaves: when they leave the window, in milliseconds.
    """

    updates: tuple[tuple[Key, int], ...]
    once: str | None
    leaves: int


class Site(Recount):
    """One run.

    Attributes:
        inside: {version: visits} of what counts, and has not been seen to have left.
    """

    queues: ClassVar[tuple[str, ...]] = (SEEN,)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.inside: dict[int, Visited] = {}
        self.window = cq.Window(SEEN)
        self.limits = Limits(read_bytes=self.rng.choice((200, 2_000, 240_000)))

    @property
    def names(self) -> tuple[str, ...]:
        return (SEEN, VISITORS)

    def make(self) -> None:
        cq.configure(self.inner, VISITORS, key=str, buckets=self.rng.randint(1, 3))
        config = configured(
            self.inner,
            SEEN,
            key=(str, str),
            buckets=self.rng.randint(1, 4),
            window=self.rng.choice(_WINDOWS),
            audit="audit" in self.plan,
        )
        put_built_in(self.inner, config, distinct(VISITORS))

    def drawn(self) -> Visits:
        rng = self.hub.rng
        number = rng.randint(1, 3) * (-1 if "opposite" in self.plan and rng.random() < 0.3 else 1)
        return Visits((((rng.choice("pq"), rng.choice("abc")), number),), self.new_operation())

    def write(self, tr: Any, drawn: Visits) -> Visited | None:
        rng = self.hub.rng
        offset = rng.uniform(-40, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        config, at = read_config(tr, SEEN), runtime.time() + offset
        if self.window.add(tr, drawn.updates, drawn.once, at=at) != "taken":
            return None
        width, step = config.window or (0, 1)
        # What is promised: in for a width after the end of its slice.
        return Visited(drawn.updates, drawn.once, _milliseconds(at) // step * step + step + width)

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {"width": lambda name: cq.configure(db, name, window=self.hub.rng.choice(_WINDOWS))}

    # What is committed

    def count(self, note: Visited | Purged, version: int) -> None:
        if isinstance(note, Purged):
            self.inside.clear()
        else:
            self.inside[version] = note

    def look(self) -> None:
        """Raises `Violation` unless the totals are those of the visits whose rows are there."""
        self._leave()
        if is_purging(self.inner, SEEN):
            return
        found, expected = self._totals(SEEN), _totals(self.inside.values())
        if found != expected:
            raise Violation(f"the totals are {found}, and of the visits in the window {expected}")
        self._compare_reader()
        if self.inner.get_range(*MissedKeys(SEEN).of_generations(), limit=1):
            return  # a deletion that the observer missed
        pages: dict[Any, int] = dict(Counter(page for page, _ in self.stored(SEEN)))
        if (visitors := self._totals(VISITORS)) != pages:
            raise Violation(f"the distinct visitors are {visitors}, and there are {pages}")

    def _leave(self) -> None:
        """Forget visits whose rows are there no more; raises `Violation` if it is too early for one."""
        rows = self.inner.create_transaction().snapshot.get_range(*WindowKeys(SEEN).rows())
        for version in self.inside.keys() - {version_of(row.key[-18:-8]) for row in rows}:
            early = self.inside.pop(version).leaves / 1000 - self.now - self.skew
            if early > 0.001:
                raise Violation(f"the visit of version {version} is taken out {early:.3f} s too early")

    def _totals(self, name: str) -> dict[Any, int]:
        """{key: sum} of what a queue has, and of what waits."""
        sums = Counter(self.stored(name))
        for key, updates in self.waiting(name).items():
            sums[key] += sum(updates)
        return {key: total for key, total in sums.items() if total}

    # The end

    def settle(self) -> None:
        """Read as a user does, and let everything be taken out."""
        self._read()
        super().settle()

    def _read(self) -> None:
        """Nobody adds any more: what a reader sees is what is in the window by its clock, whatever waits."""
        if is_purging(self.inner, SEEN):
            return
        self.look()
        if "clocks differ" in self.plan or self.aside(SEEN):
            return
        for name in self.names:
            if wrong := list(verify(self.inner, name)):
                raise Violation(f"verification finds {wrong[0]}")

    def _compare_reader(self) -> None:
        """Raises `Violation` unless a reader sees the visits whose rows are there and not due by its clock."""
        if self.aside(SEEN):
            return
        found = transact(
            self.inner, lambda tr: self.window.items(tr.snapshot, pending=True, now=self.now)
        ).items
        kept = _totals(each for each in self.inside.values() if each.leaves > _milliseconds(self.now))
        if dict(found) != kept:
            raise Violation(f"a reader sees {dict(found)}, and in the window is {kept}")

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        window = WindowKeys(name)
        return {"window": window.rows(), "operations": window.operations(), **super().ranges(name)}

    def check(self) -> None:
        """Nothing is in the window any more, and nothing is left of it."""
        self.look()
        for name in self.names:
            if found := self.stored(name):
                raise Violation(f"{name}: long after, there is still {found}")


def _totals(visits: Iterable[Visited]) -> dict[Key, int]:
    """{key: sum of its visits}, without nothing."""
    sums: Counter[Key] = Counter()
    for visit in visits:
        for key, number in visit.updates:
            sums[key] += number
    return {key: total for key, total in sums.items() if total}


def _milliseconds(seconds: float) -> int:
    """Times count in milliseconds, rounded up; what a float of today's seconds cannot tell is no part of one."""
    return ceil(round(seconds * 1000, 3))
