"""The system of sketches: distinct counts and frequent texts beside an exact recount of every committed item.

Adders add items, batches and sketches to two queues. The sketch of a distinct count depends on the set of items only,
and texts this few are counted exactly. So each value must equal the recount, to the byte, however workers grouped the
updates: a lost update, one that counts twice, or a forgotten part of a staged fold shows in one of the queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq.combiners import BUILT_IN
from cq.observers.top import Ranking, top
from cq.passes.plan import Limits
from cq.store.transact import transact
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Recount

VISITORS: Final = "visitors"
TEXTS: Final = "texts"
_COMBINERS: Final = {VISITORS: "distinct", TEXTS: "frequent"}
_KEYS: Final = 5
_NAMES: Final = {VISITORS: 900, TEXTS: 40}  # an array of registers begins at 385 visitors
_MOST: Final = {VISITORS: 300, TEXTS: 60}  # items of a batch


@dataclass(frozen=True)
class Sketched:
    """A transaction has added updates, which have these items."""

    queue: str
    updates: list[tuple[str, Any]] = field(repr=False)
    items: list[tuple[str, list[str]]] = field(repr=False)
    once: str | None


class Sketching(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (VISITORS, TEXTS)
    adders: ClassVar[tuple[int, int]] = (2, 2)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.pause = 1 / 3
        self.counts: dict[str, dict[str, Counter[str]]] = {name: {} for name in self.queues}
        self.limits = Limits(
            read_bytes=self.rng.choice((300, 2_000, 20_000)),
            repack_bytes=self.rng.choice((0, 2_000)),
            max_report=self.rng.choice((1, 20)),
        )

    def make(self) -> None:
        observers = [top(every=0)] if "top" in self.plan else []
        for name, combiner in _COMBINERS.items():
            buckets = self.rng.randint(1, 3)
            cq.configure(self.inner, name, combiner=combiner, buckets=buckets, observers=observers)

    def drawn(self) -> Sketched:
        """Updates of some keys: an item, a batch, or a sketch of a batch."""
        rng = self.hub.rng
        name = rng.choice(self.queues)
        drawn = Sketched(name, [], [], self.new_operation())
        for key in map(str, rng.sample(range(_KEYS), rng.randint(1, 3))):
            items = [f"item {rng.randrange(_NAMES[name])}" for _ in range(rng.randint(1, _MOST[name]))]
            update: Any = items
            match rng.choice(("item", "batch", "sketch")):
                case "item":
                    update, items = items[0], items[:1]
                case "sketch" if "sketches" in self.plan:
                    update = BUILT_IN[_COMBINERS[name]].combine(None, [items])
            drawn.updates.append((key, update))
            drawn.items.append((key, items))
        return drawn

    def count(self, note: Sketched, version: int) -> None:
        for key, items in note.items:
            self.counts[note.queue].setdefault(key, Counter()).update(items)

    def check(self) -> None:
        """Raises `Violation` unless each value equals the recount, and the top has the values' estimates."""
        for name, combiner in _COMBINERS.items():
            expected = {
                key: BUILT_IN[combiner].combine(None, [list(counts.elements())])
                for key, counts in self.counts[name].items()
            }
            if (found := self.stored(name)) != expected:
                raise Violation(f"{name} has {found}, and of the items {expected}")
            if "top" in self.plan:
                self._check_top(name, {key: value.score for key, value in expected.items()})

    def _check_top(self, name: str, expected: dict[str, int]) -> None:
        page = transact(self.inner, lambda tr: Ranking[str, Any](name).page(tr.snapshot, len(expected) + 1))
        if (found := {entry.key: entry.score for entry in page.entries}) != expected:
            raise Violation(f"{name}: the top is {found}, expected {expected}")
