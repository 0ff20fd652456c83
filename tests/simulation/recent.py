"""The system of other windows than of ints: exact sums of decimals and of counters, and maxima whose slices are merged.

The model has each committed update and the time at which it leaves. Now and then a reader's totals must be exactly
those of the updates that are inside by its clock, whatever is queued and whatever workers have taken out or deleted.
If clocks differ, a worker whose clock is ahead may have taken out an update that is about to leave: then a key with
such an update is not compared. Workers keep merged slices for longer than clocks differ here, so a key of these is
compared unless its latest update is about to leave. Long after the last update, nothing is stored any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.admin.purge import is_purging
from cq.config.queue import read_config
from cq.keys import QueueKeys
from cq.keys.window import WindowKeys
from cq.passes.plan import Limits
from cq.store.transact import transact
from cq.verify.queue import verify
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount

TURNOVER: Final = "turnover"
COUNTS: Final = "counts"
SLOWEST: Final = "slowest"
SLICES: Final = f"{SLOWEST}.1s"
_LONG: Final = Decimal(f"0.{'3' * 40}")
_UPDATES: Final[dict[str, tuple[Any, ...]]] = {
    TURNOVER: (Decimal("19.90"), Decimal(10) ** 30, _LONG, -_LONG, Decimal(-7)),
    COUNTS: ({"a": 1}, {"a": -1, "b": _LONG}, {"b": Decimal(10) ** 30}, {"b": -_LONG, "c": 2}),
    SLOWEST: (1, 7, 20, 300, -4),
}
_WIDTHS: Final = (3, 6, 10)
_SLICE: Final = 1_000


@dataclass(frozen=True)
class Recent:
    """An add of an update to a queue, `offset` seconds from now."""

    queue: str
    key: str
    update: Any
    offset: float
    once: str | None


@dataclass(frozen=True)
class Taken:
    """An add is committed whose update is in the slice of a start, and leaves at a time, both in milliseconds."""

    queue: str
    key: str
    update: Any
    start: int
    leaves: int
    once: str | None


class RecentTotals(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (TURNOVER, COUNTS, SLOWEST)
    most_skew: ClassVar[float] = 2.0
    """With 100 s, no window would have an update that must be in it."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.inside: dict[str, list[Taken]] = {name: [] for name in self.queues}
        self.limits = Limits(read_bytes=self.rng.choice((200, 2_000, 240_000)))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.queues, SLICES)

    def make(self) -> None:
        for name, value, combiner in (
            (TURNOVER, Decimal, "sum"),
            (COUNTS, dict, "counter"),
            (SLOWEST, int, "maximum"),
        ):
            window, buckets = (self.rng.choice(_WIDTHS), 1), self.rng.randint(1, 3)
            cq.configure(self.inner, name, value=value, combiner=combiner, window=window, buckets=buckets)

    def drawn(self) -> Recent:
        rng = self.hub.rng
        name = rng.choice(self.queues)
        offset = rng.uniform(-12, 1) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        return Recent(name, rng.choice("pqr"), rng.choice(_UPDATES[name]), offset, self.new_operation())

    def write(self, tr: Any, drawn: Recent) -> Taken | None:
        window = read_config(tr, drawn.queue).window
        at = runtime.time() + drawn.offset
        added = cq.Window[Any](drawn.queue).add(tr, {drawn.key: drawn.update}, drawn.once, at=at)
        if added != "taken" or window is None:
            return None
        # What is promised: in for a width after the end of its slice.
        start = _milliseconds(at) // window.slice * window.slice
        leaves = start + window.slice + window.width
        return Taken(drawn.queue, drawn.key, drawn.update, start, leaves, drawn.once)

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {"width": lambda name: self._widen(db, name)}

    def _widen(self, db: Any, name: str) -> None:
        """Another width of a window that subtracts: each update keeps the time at which it leaves."""
        if name != SLOWEST:
            cq.configure(db, name, window=(self.hub.rng.choice(_WIDTHS), 1))

    def count(self, note: Any, version: int) -> None:
        if isinstance(note, Purged):
            self.inside[note.queue].clear()
        else:
            self.inside[note.queue].append(note)

    def look(self) -> None:
        """Raises `Violation` unless a reader sees the totals of the updates inside."""
        for name in self.queues:
            if is_purging(self.inner, name) or any(map(self.aside, {name, SLICES})):
                continue
            now = self.now
            self.inside[name] = [each for each in self.inside[name] if each.leaves > _milliseconds(now)]
            page = transact(self.inner, lambda tr: self._page(tr, name, now))  # noqa: B023
            found, expected = dict(page.items), self._expected(name, now)
            for key in self._uncertain(name, now):
                found.pop(key, None)
                expected.pop(key, None)
            if found != expected:
                raise Violation(f"a reader of {name} sees {found}, and in the window is {expected}")

    def _page(self, tr: Any, name: str, now: float) -> cq.Page[Any, Any]:
        return cq.Window[Any](name).items(tr.snapshot, pending=True, now=now)

    def _uncertain(self, name: str, now: float) -> set[str]:
        """The keys with updates that a worker, by its clock, may have taken out already."""
        if name == SLOWEST:
            # Its own keys expire by the clocks of two workers: the one that combined the latest update of a key, which
            # an adder's clock and one slice may have put ahead, and the one that deletes it.
            ahead = 2 * self.skew + _SLICE / 1000 if self.skew else 0.0
            latest = {each.key: each.leaves for each in sorted(self.inside[name], key=attrgetter("leaves"))}
            return {key for key, leaves in latest.items() if leaves <= _milliseconds(now + ahead)}
        return {each.key for each in self.inside[name] if each.leaves <= _milliseconds(now + self.skew)}

    def _expected(self, name: str, now: float) -> dict[str, Any]:
        updates: defaultdict[str, list[Any]] = defaultdict(list)
        for each in self.inside[name]:
            # A reader of merged slices sees those up to a slice ahead of its clock; an adder's clock may be ahead.
            if name != SLOWEST or each.start <= _milliseconds(now) + _SLICE:
                updates[each.key].append(each.update)
        totals = {key: _total(name, some) for key, some in updates.items()}
        return {key: total for key, total in totals.items() if total is not None}

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        window = WindowKeys(name)
        return {
            **super().ranges(name),
            "values": QueueKeys(name).values(),
            "rows of the window": window.rows(),
            "operations of the window": window.operations(),
        }

    def check(self) -> None:
        """Nothing is in the windows any more, and nothing is left of it."""
        for name in self.names:
            if found := self.stored(name):
                raise Violation(f"long after, {name} still has {found}")
            if wrong := list(verify(self.inner, name)):
                raise Violation(f"{name}: verification finds {wrong[0]}")


def _total(name: str, updates: Sequence[Any]) -> Any:
    """The total of these updates, at least one, in fractions; None for nothing."""
    if name == SLOWEST:
        return max(updates)
    if name == TURNOVER:
        return sum(map(Fraction, updates)) or None
    items = {item for update in updates for item in update}
    counts = {item: sum(Fraction(update.get(item, 0)) for update in updates) for item in items}
    return {item: count for item, count in counts.items() if count} or None


def _milliseconds(seconds: float) -> int:
    """Times count in milliseconds, rounded up; what a float of today's seconds cannot tell is no part of one."""
    return ceil(round(seconds * 1000, 3))
