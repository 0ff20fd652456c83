"""The system of roll-ups: hits at once and late, in a queue with levels that are derived from each other and expire.

The model has each committed hit with its time. Now and then, and at the end, each period that cannot have expired must
have the combination of just its hits: in its level, and in the updates that wait in this level or in a finer one. A
period that has expired may have other values, of late hits, until it expires again. The last level is kept for ever.
Observers refuse the deletions of some periods for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from zlib import crc32

import cq
from cq.admin.purge import is_purging
from cq.config.queue import read_config
from cq.config.rollup import RollUp, RollUpLevel
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.keys.missed import MissedKeys
from cq.observers.verify.queue import verification
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.queue.missed_reports import retry_missed
from cq.queue.pending import read_pending
from cq.queue.rows import by_key, drop_repeated_operations, notified
from cq.queue.set_aside import read_aside, retry_aside
from cq.store.api import error_code
from cq.store.transact import transact
from tests.helpers import configured
from tests.simulation.actors import WorkerPool
from tests.simulation.application import Raised
from tests.simulation.hub import START_NS, Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

HITS: Final = "hits"
_PURGED: Final = "purged"
_ROLLUPS: Final = ("2s:6s,10s:30s,60s:forever", "5s:20s,20s:forever", "3s:forever,60s:forever")
_REFUSALS: Final = "observers refuse keys"
_LOOK_COMMITS: Final = 8
MOST_SKEW: Final = 200.0
_COMBINED: Final[dict[str, Callable[[list[int]], int]]] = {"sum": sum, "maximum": max}


@dataclass(frozen=True)
class Hit:
    """A transaction has added hits."""

    updates: tuple[tuple[str, int], ...]
    once: str | None
    at: float


class Hits(Scenario):
    """One run."""

    beginners: ClassVar[tuple[str, ...]] = ("add", "change", "restart")

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.rollup = RollUp.parse(self.rng.choice(_ROLLUPS))
        self.combiner = self.rng.choice(list(_COMBINED))
        self.names = [HITS, *(level.queue_of(HITS) for level in self.rollup.levels)]
        self.hits: list[Hit] = []
        self.operations: dict[str, Hit] = {}
        self.seen: set[str] = set()
        self.pause = self.rng.choice((0.05, 0.3, 1.0))
        self._tokens = self._commits = 0
        self.workers = WorkerPool(self, self._worker)
        self._limits = Limits(
            read_bytes=self.rng.choice((100, 2_000, 240_000)), max_report=self.rng.choice((1, 3, 1_000))
        )

    def begin(self) -> None:
        buckets = self.rng.randint(1, 3)
        configured(self.inner, HITS, combiner=self.combiner, buckets=buckets, rollup=self.rollup)
        if _REFUSALS in self.plan:
            for name in self.names[1:]:
                self.app().configure(self.inner, name)
        for _ in range(self.rng.randint(1, 3)):
            self._start_adder()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self._start_administrator()

    def _worker(self, process: Process, identity: str) -> Worker:
        return Worker(
            self.db(process),
            self.app(),
            concurrency=2,
            grace=5.0,
            limits=self._limits,
            identity=identity,
            beat_seconds=2.0,
        )

    def app(self) -> cq.App:
        """Observers of the levels that refuse deletions."""
        app = cq.App()
        for name in self.names[1:] if _REFUSALS in self.plan else ():
            app.queue(name, observers=[cq.Observer("refusing", 1, self._refuse)])
        return app

    def _refuse(self, tr: Any, changes: list[cq.Change]) -> None:
        """Half of the time, refuse the deletions of every other period."""
        is_refusing = not self.is_calm and self.hub.clock % 20 < 10
        if is_refusing and any(each.new is None and crc32(repr(each.key).encode()) % 2 for each in changes):
            raise Raised("an observer of a level")

    # Adders

    def _start_adder(self) -> None:
        process = self.process("adder")
        process.reborn = self._start_adder
        self.hub.start(process, "add", lambda: self._add_all(process))

    def _add_all(self, process: Process) -> None:
        rng = self.hub.rng
        while not self.is_calm:
            self.hub.wait(rng.expovariate(1 / self.pause))
            again = list(self.operations.values())
            self._add(process, rng.choice(again) if again and rng.random() < 0.3 else self._drawn())

    def _drawn(self) -> Hit:
        rng = self.hub.rng
        updates = tuple((rng.choice("pq"), rng.randint(1, 5)) for _ in range(rng.randint(1, 2)))
        offset = rng.uniform(-25, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0
        self._tokens += 1
        once = f"operation {self._tokens}" if "once" in self.plan and rng.random() < 0.5 else None
        hit = Hit(updates, once, START_NS / 1e9 + self.hub.clock + offset)
        if once is not None:
            self.operations[once] = hit
        return hit

    def _add(self, process: Process, hit: Hit) -> None:
        def run(tr: Any) -> None:
            if cq.Series(HITS).add(tr, hit.updates, hit.once, at=hit.at) == "taken":
                tr.notes.append(hit)
            if self.hub.rng.random() < 0.1:
                self.hub.wait(self.hub.rng.expovariate(1.0))

        try:
            transact(self.db(process), run)
        except Exception as error:
            if error_code(error) is None:
                raise
        else:
            self.operations.pop(hit.once or "", None)

    # Changes

    def _start_administrator(self) -> None:
        process = self.process("administrator")
        process.reborn = self._start_administrator
        self.hub.start(process, "change", lambda: self._change(process))

    def _change(self, process: Process) -> None:
        rng, db = self.hub.rng, self.db(process)
        doing: dict[str, Callable[[], object]] = {
            "purge": lambda: self._purge(db),
            "rebucket": lambda: cq.rebucket(db, HITS, rng.randint(1, 4)),
            "come and go": self._come_and_go,
            _REFUSALS: lambda: [retry_missed(db, name) for name in self.names],
        }
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(rng.expovariate(1 / 4.0))
            what = rng.choice(kinds)
            self.trace(what)
            try:
                doing[what]()
            except cq.CqError as error:
                self.trace("refused:", error)
            except Exception as error:
                if error_code(error) is None:
                    raise
            db.shape_note = None

    def _purge(self, db: Any) -> None:
        db.shape_note = _PURGED
        cq.purge(db, HITS)

    def _come_and_go(self) -> None:
        if self.workers.running and self.hub.rng.random() < 0.5:
            self.workers.stop(self.hub.rng.choice(list(self.workers.running)))
        elif len(self.workers.running) < 4:
            self.workers.start()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed."""
        for note in tr.notes:
            if note == _PURGED:
                self.hits.clear()
            elif note.once is None or note.once not in self.seen:
                self.seen.add(note.once or "")
                self.hits.append(note)
        self._commits += 1
        if self._commits % _LOOK_COMMITS == 0:
            self._look()

    def _look(self) -> None:
        """Raises `Violation` unless each period that is kept has its hits, with those that wait in finer levels."""
        if is_purging(self.inner, HITS):
            return
        snapshot = self.inner.create_transaction().snapshot
        waiting: dict[Any, list[int]] = {}
        for level in self.rollup.levels:
            name = level.queue_of(HITS)
            found = {key: [value] for key, value in self._stored(snapshot, name).items()}
            waiting = _by_period(level.period, waiting)
            for key, updates in self._waiting(snapshot, name).items():
                waiting.setdefault(key, []).extend(updates)
            for key, updates in waiting.items():
                found.setdefault(key, []).extend(updates)
            combined = {key: _COMBINED[self.combiner](some) for key, some in found.items()}
            self._compare(name, self._kept(level, combined), self._kept(level, self._expected(level.period)))

    def _kept(self, level: RollUpLevel, periods: dict[Any, int]) -> dict[Any, int]:
        """The periods that no worker may have deleted, by whatever clock."""
        skew = MOST_SKEW if "clocks differ" in self.plan else 0.0
        over = START_NS / 1e9 + self.hub.clock + skew - (level.retention or 1e12)
        return {key: value for key, value in periods.items() if key[1] > over}

    def _waiting(self, snapshot: Any, name: str) -> dict[Any, list[int]]:
        """The updates of a queue that are queued, staged, or set aside."""
        keys, config = QueueKeys(name), read_config(snapshot, name)
        buckets = notified(snapshot.get_range(*keys.notifications()), keys)
        rows = [row for each in buckets for row in read_pending(snapshot, keys, name, *each).rows]
        found = {
            encoded: list(some)
            for encoded, some in by_key(drop_repeated_operations(snapshot, keys, rows)).items()
        }
        for row in snapshot.get_range(*keys.staged_of_bucket(1, 0)):
            found.setdefault(keys.encoded_key(row.key), []).append(codec.decode(row.value))
        for aside in read_aside(snapshot, name):
            found.setdefault(aside.encoded_key, []).extend(aside.updates)  # none of a missed report
        return {config.key.decode(encoded): updates for encoded, updates in found.items() if updates}

    # The end

    def settle(self) -> None:
        """All updates are combined, and periods whose time is over expire."""
        process = self.process("ending")
        self.workers.replace()
        while len(self.workers.running) < 2:
            self.workers.start()
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _finish(self, process: Process) -> None:
        db = self.db(process)
        while self.operations:
            self._add(process, next(iter(self.operations.values())))
        while self.left():
            for name in self.names:
                key_type = transact(db, lambda tr: read_config(tr, name)).key  # noqa: B023
                for encoded in {each.encoded_key for each in transact(db, lambda tr: read_aside(tr, name))}:  # noqa: B023
                    retry_aside(db, name, key_type.decode(encoded))
                retry_missed(db, name)
            self.hub.wait(5.0)

    def left(self) -> str:
        if self.operations:
            return f"operations {sorted(self.operations)}"
        snapshot = self.inner.create_transaction().snapshot
        for name in self.names:
            keys = QueueKeys(name)
            ranges = {
                "rows": keys.all_rows(),
                "notifications": keys.notifications(),
                "set aside": keys.aside(),
                "missed reports": MissedKeys(name).notes(),
            }
            for what, bounds in ranges.items():
                if found := snapshot.get_range(*bounds, limit=1).to_list():
                    return f"{what} of {name}: {found}"
        for level in self.rollup.levels:
            over = START_NS / 1e9 + self.hub.clock - (level.retention or 1e12) - 120
            stored = self._stored(snapshot, level.queue_of(HITS))
            if any(start < over for _, start in stored):
                return f"periods of {level} that must expire"
        return "a purge" if is_purging(self.inner, HITS) else ""

    def _stored(self, snapshot: Any, name: str) -> dict[Any, int]:
        keys, config = QueueKeys(name), read_config(snapshot, name)
        rows = snapshot.get_range(*keys.values())
        return {config.key.decode(keys.encoded_key(row.key)): codec.decode(row.value) for row in rows}

    def check(self) -> None:
        """Raises `Violation` unless the queue and its levels have the hits of each period."""
        snapshot = self.inner.create_transaction().snapshot
        totals = {key: total for (key, _), total in self._expected(1 << 40).items()}
        self._compare(HITS, self._stored(snapshot, HITS), totals)
        self._look()
        for level in self.rollup.levels:
            name = level.queue_of(HITS)
            if extra := self._stored(snapshot, name).keys() - self._expected(level.period).keys():
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
