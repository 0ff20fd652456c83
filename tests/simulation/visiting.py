"""The system of the windows: visits of pages by visitors, at once, late and from the future, and what counts of them.

A model that shares no code with cq has each visit that was committed, see `windowmodel`. At each look, what is stored
and queued in slices, and queued with a time, must be the visits of each slice; the totals, with what is queued for
them, must be the sums of just the stored slices; the distinct visitors must be those that have a total; and the queue
itself must have the visits of all time. A reader must see the visits inside by its clock, in a look and in the middle
of everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.config.queue import QueueConfig, read_config
from cq.keys import QueueKeys
from cq.observers.distinct import distinct
from cq.queue.pending import read_pending_rows
from cq.queue.rows import timed
from cq.store.transact import transact
from cq.windows import Window
from tests.kit.queues import configured, put_built_in
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged
from tests.simulation.store import CommitRequest
from tests.simulation.windowmodel import (
    Windowed,
    WindowModel,
    end_of_slice,
    is_settled,
    milliseconds,
    missed_any,
    read_items,
)

SEEN: Final = "seen"
SLICES: Final = f"{SEEN}.slices"
TOTALS: Final = f"{SEEN}.window"
VISITORS: Final = "visitors"
_WINDOWS: Final = ((10, 1), (30, 5), (2, 0.5))
_ROLLUPS: Final = ("none", "1s:20s", "2s:6s,10s:forever")

Key = tuple[str, str]


@dataclass(frozen=True)
class Visits:
    """Visits to be added, each at a time of its own, as seconds from now."""

    updates: tuple[tuple[Key, int, float], ...]
    once: str | None


@dataclass(frozen=True)
class Visited:
    """A transaction has added visits, each with its time in milliseconds."""

    updates: tuple[tuple[Key, int, int], ...]
    once: str | None


class Site(Windowed):
    """One run.

    Attributes:
        all: {key: sum} of the visits of all time.
    """

    queues: ClassVar[tuple[str, ...]] = (SEEN,)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.model = WindowModel(SEEN, self.skew)
        self.all: Counter[Key] = Counter()
        self.window = Window[Key](SEEN)

    @property
    def names(self) -> tuple[str, ...]:
        return (*super().names, VISITORS)

    def make(self) -> None:
        cq.configure(self.inner, VISITORS, key=str, buckets=self.rng.randint(1, 3))
        configured(
            self.inner,
            SEEN,
            key=(str, str),
            buckets=self.rng.randint(1, 4),
            window=self.rng.choice(_WINDOWS),
            audit="audit" in self.plan,
        )
        totals = read_config(self.inner.create_transaction().snapshot, TOTALS)
        put_built_in(self.inner, totals, distinct(VISITORS))

    def drawn(self) -> Visits:
        rng = self.hub.rng
        visits = []
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            number = rng.randint(1, 3) * (-1 if "opposite" in self.plan and rng.random() < 0.3 else 1)
            offset = rng.uniform(-40, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0
            visits.append(((rng.choice("pq"), rng.choice("abc")), number, offset))
        return Visits(tuple(visits), self.new_operation())

    def write(self, tr: Any, drawn: Visits) -> Visited | None:
        now = runtime.time()
        updates = [(key, number, now + offset) for key, number, offset in drawn.updates]
        config = read_config(tr, SEEN)
        if self.hub.rng.random() < 0.5:
            # Rows of updates with several times.
            judged = [_judged(config, milliseconds(at), milliseconds(now)) for _, _, at in updates]
            found = self.window.add_each(tr, updates, drawn.once, now=now)
            if judged != found:
                raise Violation(f"{updates} are {found}, and not {judged}")
        else:
            at = updates[0][2]
            updates = [(key, number, at) for key, number, _ in updates]
            pairs = [(key, number) for key, number, _ in updates]
            judged = [self.window.add(tr, pairs, drawn.once, at=at, now=now)] * len(updates)
        taken = [update for update, each in zip(updates, judged, strict=True) if each == "taken"]
        if not taken:
            return None
        return Visited(tuple((key, number, milliseconds(at)) for key, number, at in taken), drawn.once)

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {"width": lambda name: self._change_shape(db)}

    def _change_shape(self, db: Any) -> None:
        """Another width or length of slices, or another roll-up beside the window."""
        rng = self.hub.rng
        if rng.random() < 0.7:
            cq.configure(db, SEEN, window=rng.choice(_WINDOWS))
        else:
            cq.configure(db, SEEN, rollup=rng.choice(_ROLLUPS))

    # What is committed

    def count(self, note: Visited | Purged, version: int) -> None:
        if isinstance(note, Purged):
            self.model.purge(version)
            self.all.clear()
        else:
            self.model.add(version, note.updates)
            for key, number, _ in note.updates:
                self.all[key] += number

    def committed(self, tr: CommitRequest) -> None:
        snapshot = self.inner.create_transaction().snapshot
        self.model.committed(snapshot, self.version, milliseconds(self.now))
        totals = QueueKeys(TOTALS).notifications()
        if snapshot.get_range(*totals, limit=1).to_list():
            # Between the pass over the slices and that over the totals.
            self.look()
            self.die_soon()

    def look(self) -> None:
        """Raises `Violation` unless all that is stored and queued is that of the visits."""
        snapshot = self.inner.create_transaction().snapshot
        if not is_settled(snapshot, SEEN):
            return
        self._compare("the queue", self._sums(SEEN), self.all)
        self._compare_slices(snapshot)
        slices = self.stored(SLICES)
        totals: Counter[Key] = Counter()
        for (page, visitor, _), number in slices.items():
            totals[page, visitor] += number
        self._compare("the totals", self._sums(TOTALS), totals)
        if not missed_any(snapshot, TOTALS):
            pages = Counter(page for page, _ in self.stored(TOTALS))
            self._compare("the distinct visitors", self._sums(VISITORS), pages)
        self._compare_reader(snapshot)

    def _compare_slices(self, snapshot: Any) -> None:
        """Compare the slices, with what is queued for them, except those that a worker may have deleted."""
        config, over = self._config, self.model.over
        found = Counter(self._sums(SLICES))
        for encoded, number, at in timed(read_pending_rows(snapshot, config)):
            found[(*config.key.decode(encoded), end_of_slice(config, at))] += number
        expected: Counter[Any] = Counter()
        for each in self.model.updates:
            end = end_of_slice(config, each.at) if each.end is None else each.end
            expected[(*each.key, end)] += each.update
        self._compare(
            "the slices",
            {key: number for key, number in found.items() if key[-1] > over},
            {key: number for key, number in expected.items() if key[-1] > over},
        )

    def _compare(self, what: str, found: Mapping[Any, int], expected: Mapping[Any, int]) -> None:
        found, expected = _without_nothing(found), _without_nothing(expected)
        if found != expected:
            raise Violation(f"{what}: there is {found}, and expected is {expected}")

    def _sums(self, name: str) -> dict[Any, int]:
        """{key: sum} of what a queue has, and of what waits."""
        return {key: sum(parts) for key, parts in self.parts(name).items()}

    @property
    def _config(self) -> QueueConfig:
        return read_config(self.inner.create_transaction().snapshot, SEEN)

    # Readers

    def _compare_reader(self, snapshot: Any) -> None:
        """Raises `Violation` unless a reader sees the visits inside by its clock."""
        self._check_items(read_items(self.window, snapshot, self.now), self._config, self.now)

    def _check_items(
        self, items: Iterable[tuple[Key, int]], config: QueueConfig, now: float, version: float = inf
    ) -> None:
        at = milliseconds(now)
        uncertain = self.model.uncertain(config, at, version)
        expected: Counter[Key] = Counter()
        for each, _ in self.model.inside(config, at, version):
            expected[each.key] += each.update
        found = {key: number for key, number in items if key not in uncertain}
        expected = Counter({key: number for key, number in expected.items() if key not in uncertain})
        self._compare(f"a reader at {now:.3f}", found, expected)

    def read(self, db: Any) -> None:
        read = transact(db, self._read_once)
        if read is not None and read[3] > self.model.purged:
            self._check_items(*read)

    def _read_once(self, tr: Any) -> tuple[list[tuple[Key, int]], QueueConfig, float, int] | None:
        now, snapshot = runtime.time(), tr.snapshot
        if not is_settled(snapshot, SEEN):
            return None
        items = read_items(self.window, snapshot, now)
        return items, read_config(snapshot, SEEN), now, tr.get_read_version().wait()

    # The end

    def settle(self) -> None:
        """Read as a user does, and let everything be deleted."""
        self.look()
        snapshot = self.inner.create_transaction().snapshot
        if "clocks differ" not in self.plan and is_settled(snapshot, SEEN):
            self.verify()
        super().settle()

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        """In the window there is nothing at the end."""
        found = super().ranges(name)
        return found | {"values": QueueKeys(name).values()} if name in (SLICES, TOTALS, VISITORS) else found


def _judged(config: QueueConfig, at: int, now: int) -> str:
    """What becomes of an update with a time, both in milliseconds."""
    width, most = config.window or (0, 1)
    is_late = end_of_slice(config, at) + width <= now
    for level in config.rollup.levels[:1] if config.rollup else ():
        start = at // 1000 // level.period * level.period
        is_late &= level.retention is not None and start + level.retention <= now // 1000
        most = min(most, 1000 * level.period)
    return "late" if is_late else "future" if at > now + most else "taken"


def _without_nothing(sums: Mapping[Any, int]) -> dict[Any, int]:
    return {key: total for key, total in sums.items() if total}
