"""The system of other windows than of ints: exact sums of decimals and of counters, sums of floats, and maxima.

The model has each committed update, see `windowmodel`. A reader's totals must be exactly those of the updates that are
inside by its clock, whatever is queued and whatever workers have deleted. Updates may be 0 or negative, so a maximum
may be 0. If clocks differ, or after a change of the width, workers may have deleted slices that a reader has inside:
then a key with such a slice is not compared. Windows come and go, and roll-ups beside them; the queues themselves must
have the combination of the updates of all time. Long after the last update, nothing is stored in the windows any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from math import fsum, inf
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.keys import QueueKeys
from cq.store.api import TransactionRead
from cq.store.transact import transact
from cq.windows import Window
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged
from tests.simulation.store import CommitRequest
from tests.simulation.windowmodel import (
    Windowed,
    WindowModel,
    is_settled,
    milliseconds,
    read_items,
)

TURNOVER: Final = "turnover"
COUNTS: Final = "counts"
RATES: Final = "rates"
SLOWEST: Final = "slowest"
_DECIMALS: Final = 40
_LONG: Final = Decimal(f"0.{'3' * _DECIMALS}")
_UPDATES: Final[dict[str, tuple[Any, ...]]] = {
    TURNOVER: (Decimal("19.90"), Decimal(10) ** 30, _LONG, -_LONG, Decimal(-7), Decimal(0)),
    COUNTS: ({"a": 1}, {"a": -1, "b": _LONG}, {"b": Decimal(10) ** 30}, {"b": -_LONG, "c": 2}, {"a": 0}),
    RATES: (0.1, -0.1, 2.5, 1e6, 0.0),
    SLOWEST: (1, 7, 20, 300, 0, -4),
}
_KINDS: Final = {
    TURNOVER: (Decimal, "sum"),
    COUNTS: (dict, "counter"),
    RATES: (float, "sum"),
    SLOWEST: (int, "maximum"),
}
_KEYS: Final = ("p", "q", "r")
_LOW: Final = "r"
"""The key whose maxima are 0 or negative."""
_WIDTHS: Final = (3, 6, 10)
_ROLLUPS: Final = ("none", "1s:20s", "2s:6s,10s:forever")
_ROUNDED: Final = 1e-6
"""More than the rounding of sums of these floats."""


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
    """An add is committed, of an update with a time in milliseconds; None: the queue had no window and no roll-up."""

    queue: str
    key: str
    update: Any
    at: int | None
    once: str | None


@dataclass(frozen=True)
class Read:
    """What a reader has seen: the totals of all keys, listed and read by key, and when it did so."""

    queue: str
    listed: dict[str, Any]
    got: dict[str, Any]
    config: QueueConfig
    now: float
    version: float


class RecentTotals(Windowed):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (TURNOVER, COUNTS, RATES, SLOWEST)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.models = {
            name: WindowModel(name, self.skew, merges=name in (SLOWEST, RATES)) for name in self.queues
        }

    def make(self) -> None:
        for name, (value, combiner) in _KINDS.items():
            window, buckets = (self.rng.choice(_WIDTHS), 1), self.rng.randint(1, 3)
            cq.configure(self.inner, name, value=value, combiner=combiner, window=window, buckets=buckets)

    def drawn(self) -> Recent:
        rng = self.hub.rng
        name, key = rng.choice(self.queues), rng.choice(_KEYS)
        updates = _UPDATES[name]
        if name == SLOWEST and key == _LOW:
            updates = tuple(update for update in updates if update <= 0)
        offset = rng.uniform(-12, 1) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        return Recent(name, key, rng.choice(updates), offset, self.new_operation())

    def write(self, tr: Any, drawn: Recent) -> Taken | None:
        at, updates = runtime.time() + drawn.offset, {drawn.key: drawn.update}
        if not read_config(tr, drawn.queue).is_timed:
            cq.CombineQueue[Any, Any](drawn.queue).add(tr, updates, drawn.once)
            return Taken(drawn.queue, drawn.key, drawn.update, None, drawn.once)
        if Window[Any, Any](drawn.queue).add(tr, updates, drawn.once, at=at) != "taken":
            return None
        return Taken(drawn.queue, drawn.key, drawn.update, milliseconds(at), drawn.once)

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {"width": lambda name: self._change_shape(db, name)}

    def _change_shape(self, db: Any, name: str) -> None:
        """Another width, no window, or another roll-up beside it."""
        rng = self.hub.rng
        drawn = rng.random()
        if drawn < 0.2:
            cq.configure(db, name, rollup=rng.choice(_ROLLUPS))
        else:
            cq.configure(db, name, window=drawn > 0.35 and (rng.choice(_WIDTHS), 1))

    # What is committed

    def count(self, note: Any, version: int) -> None:
        if isinstance(note, Purged):
            self.models[note.queue].purge(version)
        else:
            self.models[note.queue].add(version, [(note.key, note.update, note.at)])

    def committed(self, tr: CommitRequest) -> None:
        snapshot = self.inner.create_transaction().snapshot
        for name, model in self.models.items():
            model.committed(snapshot, self.version, milliseconds(self.now))
            totals = QueueKeys(f"{name}.window").notifications()
            if snapshot.get_range(*totals, limit=1).to_list():
                # Between the pass over the slices and that over the totals.
                self._look_at(name, snapshot)
                self.die_soon()

    def look(self) -> None:
        snapshot = self.inner.create_transaction().snapshot
        for name in self.queues:
            self._look_at(name, snapshot)

    def _look_at(self, name: str, snapshot: TransactionRead) -> None:
        """Raises `Violation` unless the queue has all updates, and a reader sees the totals of those inside."""
        read = self._read(snapshot, name, self.now)
        if read is None:
            return
        self._compare_all(name)
        self._check(read)

    def _compare_all(self, name: str) -> None:
        """Compare what the queue has, and what waits in it, with the updates of all time."""
        found = _totals(name, self.parts(name))
        expected = ((each.key, each.update) for each in self.models[name].updates)
        self._compare(name, f"queue {name}", found, _totals(name, _by_key(expected)))

    def _read(self, snapshot: Any, name: str, now: float, version: float = inf) -> Read | None:
        """What a reader sees; None if it sees less for a while, for example during a purge."""
        config = read_config(snapshot, name)
        if config.window is None or not is_settled(snapshot, name):
            return None
        window = Window[str, Any](name)
        listed = read_items(window, snapshot, now)
        got = window.get_many(snapshot, _KEYS, pending=True, now=now).items()
        totals = [
            {key: _total(name, [total]) for key, total in each if total is not None} for each in (listed, got)
        ]
        return Read(name, totals[0], totals[1], config, now, version)

    def _check(self, read: Read) -> None:
        """Raises `Violation` unless a reader has seen the totals of the updates inside."""
        model, now = self.models[read.queue], milliseconds(read.now)
        inside = [each for each, _ in model.inside(read.config, now, read.version)]
        totals = _totals(read.queue, _by_key((each.key, each.update) for each in inside))
        uncertain = model.uncertain(read.config, now, read.version)
        where = f"at {read.now:.3f}, a reader by key of {read.queue}"
        self._compare(read.queue, where, _without(read.got, uncertain), _without(totals, uncertain))
        uncertain |= model.unlisted(read.config, now, milliseconds(self.now), read.version)
        where = f"at {read.now:.3f}, a reader of {read.queue}"
        self._compare(read.queue, where, _without(read.listed, uncertain), _without(totals, uncertain))

    def _compare(self, name: str, what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        if found != expected and not (name == RATES and _are_close(found, expected)):
            raise Violation(f"{what} has {found}, and expected is {expected}")

    # A reader in the middle of everything, by another clock

    def read(self, db: Any) -> None:
        name = self.hub.rng.choice(self.queues)
        read = transact(db, lambda tr: self._read_once(tr, name))
        if read is not None and read.version > self.models[name].purged:
            self._check(read)

    def _read_once(self, tr: Any, name: str) -> Read | None:
        return self._read(tr.snapshot, name, runtime.time(), tr.get_read_version().wait())

    # The end

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        """In the windows there is nothing at the end."""
        is_part = name.endswith((".slices", ".window"))
        return super().ranges(name) | ({"values": QueueKeys(name).values()} if is_part else {})


def _by_key(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for key, update in pairs:
        found[key].append(update)
    return found


def _totals(name: str, updates: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """{key: total} of those that are not 0."""
    totals = {key: _total(name, some) for key, some in updates.items()}
    return {key: total for key, total in totals.items() if total is not None}


def _total(name: str, updates: Sequence[Any]) -> Any:
    """The total of these updates, at least one, in units of the last decimal; None for nothing."""
    if name == SLOWEST:
        return max(updates)
    if name == RATES:
        return fsum(updates) or None
    if name == TURNOVER:
        return sum(map(_units, updates)) or None
    items = {item for update in updates for item in update}
    counts = {item: sum(_units(update.get(item, 0)) for update in updates) for item in items}
    return {item: count for item, count in counts.items() if count} or None


@cache
def _units(number: Decimal | int) -> int:
    """An exact number of units of the last decimal that an update has."""
    return int(Fraction(number) * 10**_DECIMALS)


def _are_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether these are the same sums of floats, up to rounding."""
    return all(abs(found.get(key, 0) - expected.get(key, 0)) < _ROUNDED for key in {*found, *expected})


def _without(totals: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: total for key, total in totals.items() if key not in keys}
