"""The system of roll-ups: hits at once, late and ahead, in a queue with levels that come, go, and expire.

The model has each committed hit with its time, and for each level the hits that it must have: all since it was added,
and those that were queued then. Now and then, and at the end, each period that cannot have expired must have the
combination of just its hits: in its level, in the updates that wait there, and in the rows of the queue that have a
time. A period that has expired, under the present retention or a former one, may have other values, of late hits, until
it expires again. Observers refuse keys and the deletions of some periods for a while. Hits may be 0 or negative, so a
sum of 0 deletes a period and a maximum of 0 does not. The combiner of the application may change its version: a number
of the second version is larger by `_SHIFT`, and no code of a version may see one of the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch
from zlib import crc32

import cq
from cq.admin.purging import purging_buckets
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import RollUp, RollUpLevel
from cq.observers.verify import levels
from cq.passes.plan import Limits
from cq.queue import pending
from cq.queue.rows import timed
from cq.queue.set_aside import retry_missed
from cq.store.transact import transact
from cq.windows import Window
from tests.simulation.application import Raised
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount
from tests.simulation.scenario import check_verified
from tests.simulation.store import CommitRequest

HITS: Final = "hits"
_ROLLUPS: Final = ("2s:6s,10s:30s,60s:forever", "5s:20s,20s:forever", "3s:forever,60s:forever")
_OTHER_PERIODS: Final = (20, 60, 6)
"""A period that each of these may have, too."""
_REFUSALS: Final = "observers refuse keys"
_LEVELS: Final = "levels"
_VERSION: Final = "version"
_SHIFT: Final = 1_000
_LATE_SECONDS: Final = 120
"""How long after its time a period is deleted at the latest, by workers without faults."""
_EXPIRES_SECONDS: Final = 5
_LAST_HITS: Final = 15
_LAST_SECONDS: Final = 6.0
_COMBINED: Final[dict[str, Callable[[list[int]], int]]] = {"sum": sum, "maximum": max, "largest": max}
_LARGEST: Final = "largest"
"""The combiner of the application."""
_WRONG: Final = 1_000_000
"""The value of a combiner that sees numbers of another version."""


@dataclass(frozen=True)
class Hit:
    """A transaction has added hits.

    Attributes:
        updates: (key, number, time) of each.
        now: the present of an add of several times, in all of its tries; None for an add of one time.
        is_timed: whether the queue had a roll-up, so that the times count.
    """

    updates: tuple[tuple[str, int, float], ...]
    once: str | None
    now: float | None
    is_timed: bool = True


@dataclass(frozen=True)
class Changed:
    """The roll-up is changed."""


@dataclass
class Level:
    """A level as it must be.

    Attributes:
        spec: its period and retention.
        over: the latest start of a period that a worker may have deleted so far.
        hits: (key, second, number) of all hits that it must have.
    """

    spec: RollUpLevel
    over: float = -math.inf
    hits: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.spec.queue_of(HITS)


class Hits(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (HITS,)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        # Only short periods are deleted, and so refused, often enough.
        number = 0 if _REFUSALS in plan else self.rng.randrange(len(_ROLLUPS))
        self.first = RollUp.parse(_ROLLUPS[number])
        self.periods = sorted([_OTHER_PERIODS[number], *(level.period for level in self.first.levels)])
        self.combiner = _LARGEST if _VERSION in plan else self.rng.choice(list(_COMBINED))
        self.is_forgetting = self.rng.random() < 0.25
        # With 100 s, hardly a period is sure to be kept.
        self.max_skew = self.rng.choice((2.0, 100.0))  # type: ignore[misc]
        # Without them, periods that passes have dropped are the latest ones that are over.
        self.last_hits = self.rng.choice((0, _LAST_HITS))
        self.hits: list[Hit] = []
        self.levels: dict[str, Level] = {}
        self.limits = Limits(
            read_bytes=self.rng.choice((100, 2_000, 240_000)),
            write_bytes=self.rng.choice((300, 1_000, 400_000)),
            max_report=self.rng.choice((1, 3, 1_000)),
        )

    def around(self) -> AbstractContextManager[object]:
        return patch.object(levels, "_SKEW_SECONDS", math.ceil(2 * self.skew) + 1)

    @property
    def names(self) -> tuple[str, ...]:
        return (HITS, *self.levels)

    def make(self) -> None:
        app, buckets = self.app(1), self.rng.randint(1, 3)
        given: dict[str, Any] = {} if self.combiner == _LARGEST else {"combiner": self.combiner}
        given |= {"expire": _EXPIRES_SECONDS} if self.is_forgetting else {}
        app.configure(self.inner, HITS, key=str, value=int, buckets=buckets, rollup=self.first, **given)
        self._note_levels()
        for name in self.levels if _REFUSALS in self.plan else ():
            app.configure(self.inner, name)

    def app(self, version: int = 0) -> cq.App:
        """Observers that refuse, and a version of the application's combiner; 0: that of the next worker."""
        version = version or (1 + len(self.workers.made) % 2 if _VERSION in self.plan else 1)
        app, is_refusing = cq.App(), _REFUSALS in self.plan
        if self.combiner == _LARGEST or is_refusing:
            combiner = _largest(version) if self.combiner == _LARGEST else None
            observers = [cq.Observer("refusing", 1, self._refuse_key)] if is_refusing else []
            app.queue(HITS, combiner=combiner, observers=observers)
        for level in self.first.levels if is_refusing else ():
            app.queue(level.queue_of(HITS), observers=[cq.Observer("refusing", 1, self._refuse_deletions)])
        return app

    @property
    def _is_refusing(self) -> bool:
        return not self.is_calm and self.hub.clock % 20 < 10

    def _refuse_key(self, tr: Any, changes: list[cq.Change]) -> None:
        if self._is_refusing and any(each.key == "q" for each in changes):
            raise Raised("an observer of the queue")

    def _refuse_deletions(self, tr: Any, changes: list[cq.Change]) -> None:
        """Refuse the deletions of every other period."""
        if self._is_refusing and any(
            each.new is None and crc32(repr(each.key).encode()) % 2 for each in changes
        ):
            raise Raised("an observer of a level")

    # Adders

    def drawn(self) -> Hit:
        rng = self.hub.rng
        numbers = (-3, 2) if "opposite" in self.plan else (1, 5)
        is_other = "other times" in self.plan
        is_mixed = is_other and rng.random() < 0.4
        offset = rng.uniform(-25, 25) if is_other and rng.random() < 0.5 else 0.0
        # Mixed ones are never late, and at most a second ahead.
        updates = tuple(
            (rng.choice("pq"), rng.randint(*numbers), self.now + (rng.uniform(-3, 1) if is_mixed else offset))
            for _ in range(rng.randint(1, 12 if is_mixed else 2))
        )
        return Hit(updates, self.new_operation(), self.now if is_mixed else None)

    def write(self, tr: Any, drawn: Hit) -> Hit | None:
        config = read_config(tr, HITS)
        hit = replace(drawn, is_timed=config.rollup is not None)
        shift = _SHIFT * (config.combiner.version - 1)
        pairs = [(key, number + shift) for key, number, _ in hit.updates]
        times = [at for *_, at in hit.updates]
        if not hit.is_timed:
            cq.CombineQueue[str, int](HITS).add(tr, pairs, hit.once)
            return hit
        if hit.now is None:
            added = Window[str](HITS).add(tr, pairs, hit.once, at=times[0])
            return hit if added == "taken" else None
        triples = [(*pair, at) for pair, at in zip(pairs, times, strict=True)]
        judged = Window[str](HITS).add_each(tr, triples, hit.once, now=hit.now)
        if judged != ["taken"] * len(triples):
            raise Violation(f"{triples}, at {hit.now}, are {judged}")
        return hit

    # Changes

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {
            _REFUSALS: lambda name: [retry_missed(db, each) for each in self.names],
            "retention": lambda name: self._change_rollup(db, self._longer()),
            _LEVELS: lambda name: self._change_rollup(db, self._other_levels()),
            _VERSION: lambda name: self.app(2).configure(db, HITS),
        }

    def _change_rollup(self, db: Any, wanted: list[RollUpLevel]) -> None:
        db.shape_note = Changed()
        cq.configure(db, HITS, rollup=RollUp(tuple(wanted)))

    def _longer(self) -> list[RollUpLevel]:
        """The levels with other retentions, at least three periods."""
        factor = self.hub.rng.choice((1, 2, 3))
        specs = [level.spec for level in self.levels.values()]
        return [each._replace(retention=each.retention and 3 * factor * each.period) for each in specs]

    def _other_levels(self) -> list[RollUpLevel]:
        """Some of the levels that there are, and others; if observers refuse their deletions, those that there are."""
        rng, found = self.hub.rng, list[RollUpLevel]()
        kept = {level.spec.period: level.spec for level in self.levels.values()}
        for period in self.periods:
            drawn = RollUpLevel(period, rng.choice((None, 3 * period, 6 * period)))
            spec = kept.get(period, drawn)
            if rng.random() < 0.4 and _REFUSALS not in self.plan:
                continue
            if _REFUSALS in self.plan and period not in kept:
                continue
            least = found[-1].retention if found else 0
            if least is None or spec.retention is None:
                found.append(spec._replace(retention=None))
            else:
                found.append(spec._replace(retention=max(spec.retention, least)))
        return found

    # What is committed

    def count(self, note: Hit | Purged | Changed, version: int) -> None:
        if isinstance(note, Changed):
            self._note_levels()
        elif isinstance(note, Purged):
            self.hits.clear()
            for level in self.levels.values():
                level.hits.clear()
        else:
            self.hits.append(note)
            for level in self.levels.values():
                level.hits += _triples([note])

    def _note_levels(self) -> None:
        """Levels are added and removed. New ones begin with what is queued."""
        rollup = self._config().rollup
        queued = Counter(self._queued()) & Counter(_triples(self.hits))  # others are from before a purge
        before, self.levels = self.levels, {}
        for spec in rollup.levels if rollup else ():
            level = before.get(spec.queue_of(HITS)) or Level(spec, hits=list(queued.elements()))
            self.levels[level.name] = level
            level.spec = spec

    def committed(self, tr: CommitRequest) -> None:
        """Note what workers may have deleted. The worker may die before it has combined what it added to the levels."""
        self.die_soon()
        for level in self.levels.values():
            level.over = max(level.over, self.now + self.skew + 0.001 - _retention(level.spec))

    def _config(self) -> QueueConfig:
        return read_config(self.inner.create_transaction().snapshot, HITS)

    def _queued(self) -> list[tuple[str, int, int]]:
        """(key, second, number) of the updates that are queued with a time."""

        def read(tr: Any) -> list[tuple[str, int, int]]:
            config = read_config(tr, HITS)
            rows = pending.read_pending_rows(tr.snapshot, config)
            return [
                (config.key.decode(encoded), time // 1000, self._shown(number))
                for encoded, number, time in timed(rows)
            ]

        # A purge under way refuses this read, as rows from before it would count: `_note_levels` leaves these out.
        with patch.object(pending, "_refuse_while_purging", lambda *_: None):
            return transact(self.inner, read)

    def _shown(self, number: int) -> int:
        """A number without its version."""
        return number - _SHIFT if self.combiner == _LARGEST and number > _SHIFT // 2 else number

    def stored(self, name: str) -> dict[Any, int]:
        return {key: self._shown(value) for key, value in super().stored(name).items()}

    def look(self) -> None:
        """Raises `Violation` unless each period that is kept has its hits, with those that are queued."""
        if purging_buckets(self.inner, HITS):
            return
        queued = self._queued()
        for level in self.levels.values():
            found = _by_period(level, queued)
            for key, parts in self.parts(level.name).items():
                found.setdefault(key, []).extend(map(self._shown, parts))
            kept, expected = (
                {key: value for key, value in periods.items() if key[1] > level.over}
                for periods in (self._combined(found), self._expected(level))
            )
            self._compare(level.name, kept, expected)

    # The end

    def finish(self, process: Process) -> None:
        """Add hits for a while, so that there are whole periods in levels that were added late."""
        while self.last_hits:
            self.hub.wait(_LAST_SECONDS)
            self.add(process, self.new_drawn())
            self.last_hits -= 1

    def left(self) -> str:
        if self.last_hits:
            return f"{self.last_hits} adds"
        snapshot = self.inner.create_transaction().snapshot
        for name in self.names:
            if read_config(snapshot, name).conversion is not None:
                return f"values of {name} that must be converted"
        for level in self.levels.values():
            oldest = self.now - _retention(level.spec) - _LATE_SECONDS
            if any(start < oldest for _, start in self.stored(level.name)):
                return f"periods of {level.name} that must expire"
        if self.is_forgetting and self.stored(HITS):
            return "keys that must expire"
        return super().left()

    def check(self) -> None:
        """Raises `Violation` unless the queue and its levels have the hits of each period."""
        if not self.is_forgetting:
            numbers: dict[Any, list[int]] = {}
            for key, number, _ in (update for hit in self.hits for update in hit.updates):
                numbers.setdefault(key, []).append(number)
            self._compare(HITS, self.stored(HITS), self._combined(numbers))
        self.look()
        for level in self.levels.values():
            if extra := self.stored(level.name).keys() - self._expected(level).keys():
                raise Violation(f"{level.name} has {extra}, and there was no such hit")
        for name in self.names:
            check_verified(self.inner, name)

    def _expected(self, level: Level) -> dict[Any, int]:
        """{(key, start of a period): combination of its hits}."""
        return self._combined(_by_period(level, level.hits))

    def _combined(self, numbers: Mapping[Any, list[int]]) -> dict[Any, int]:
        """The combination of each key's numbers; a sum of 0 is no value."""
        found = {key: _COMBINED[self.combiner](some) for key, some in numbers.items()}
        return {key: value for key, value in found.items() if value or self.combiner != "sum"}

    def _compare(self, name: str, found: dict[Any, int], wanted: dict[Any, int]) -> None:
        if found != wanted:
            raise Violation(f"{name} has {found}, and the hits are {wanted}")


def _largest(version: int) -> cq.Combiner:
    def combine(key: Any, values: Sequence[int]) -> int:
        are_mine = all((value > _SHIFT // 2) == (version == 2) for value in values)
        return max(values) if are_mine else _WRONG

    convert = None if version == 1 else lambda key, value, before: value + _SHIFT
    return cq.Combiner(_LARGEST, version, combine, convert=convert)


def _triples(hits: Iterable[Hit]) -> list[tuple[str, int, int]]:
    """(key, second, number) of all updates with a time."""
    return [(key, _second(at), number) for hit in hits if hit.is_timed for key, number, at in hit.updates]


def _by_period(level: Level, triples: Iterable[tuple[str, int, int]]) -> dict[Any, list[int]]:
    """{(key, start of a period of the level): numbers}."""
    found: dict[Any, list[int]] = {}
    period = level.spec.period
    for key, second, number in triples:
        found.setdefault((key, second // period * period), []).append(number)
    return found


def _retention(spec: RollUpLevel) -> float:
    return math.inf if spec.retention is None else spec.retention


def _second(time: float) -> int:
    """The whole second of a time: cq rounds up to milliseconds before."""
    return _milliseconds(time) // 1000


def _milliseconds(time: float) -> int:
    """Milliseconds, rounded up; what a float of today's seconds cannot represent is dropped."""
    return -int(-round(time * 1000, 3) // 1)
