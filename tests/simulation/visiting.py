"""The system of the windows: visits of pages by visitors, at once, late and from the future, and what counts of them.

A model that shares no code with cq has each visit that was committed, and when it is to leave. Who is in the window is
told by the rows that are there: at each look the totals must be the sums of just these visits, no visit may have left
too early, and the distinct visitors must be those that have a total.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.admin.purge import is_purging
from cq.config.queue import read_config
from cq.encoding import codec
from cq.keys import QueueKeys, version_of
from cq.keys.window import WindowKeys
from cq.observers.distinct import distinct
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.queue.set_aside import read_aside, retry_aside
from cq.store.api import error_code
from cq.store.transact import transact
from cq.verify.queue import verify
from cq.windows.pending import read_pending_updates
from tests.helpers import configured, put_built_in
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import START_NS, Process
from tests.simulation.model import Violation
from tests.simulation.plan import MAY_SET_ASIDE, Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

_PURGED: Final = "purged"
SEEN: Final = "seen"
VISITORS: Final = "visitors"
MOST_SKEW: Final = 100.0
_LOOK_COMMITS: Final = 8

Key = tuple[str, str]


@dataclass(frozen=True)
class Visited:
    """A transaction has added visits."""

    updates: tuple[tuple[Key, int], ...]
    once: str | None
    leaves: int


@dataclass
class Visit:
    """What counts of a transaction that is committed, until its row is taken out or purged."""

    updates: tuple[tuple[Key, int], ...]
    leaves: int


class VisitLog:
    """What was committed: `{version: visit}` of what counts, and has not been seen to have left."""

    def __init__(self) -> None:
        self.inside: dict[int, Visit] = {}
        self._ids: set[str] = set()

    def add(self, version: int, note: Visited) -> None:
        """An operation id counts once."""
        if note.once is not None and note.once in self._ids:
            return
        if note.once is not None:
            self._ids.add(note.once)
        self.inside[version] = Visit(note.updates, note.leaves)

    def leave(self, present: set[int], now: float) -> None:
        """Forget visits whose rows are there no more; raises `Violation` if it is too early for one."""
        for version in self.inside.keys() - present:
            visit = self.inside.pop(version)
            if visit.leaves > _milliseconds(now):
                early = visit.leaves / 1000 - now
                raise Violation(f"the visit of version {version} is taken out {early:.1f} s too early")

    def totals(self) -> dict[Key, int]:
        """{key: sum of its visits}, without nothing."""
        sums: Counter[Key] = Counter()
        for visit in self.inside.values():
            for key, number in visit.updates:
                sums[key] += number
        return {key: total for key, total in sums.items() if total}


class Site(Scenario):
    """One run."""

    beginners: ClassVar[tuple[str, ...]] = ("add", "change", "restart")

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.visits = VisitLog()
        self.operations: dict[str, tuple[tuple[Key, int], ...]] = {}
        self.window = cq.Window(SEEN)
        self.pause = self.rng.choice((0.02, 0.2, 1.0))
        self._tokens = self._commits = 0
        self.workers = WorkerPool(self, self._worker)
        self._limits = Limits(read_bytes=self.rng.choice((200, 2_000, 240_000)))

    def begin(self) -> None:
        cq.configure(self.inner, VISITORS, key=str, buckets=self.rng.randint(1, 3))
        config = configured(
            self.inner,
            SEEN,
            key=(str, str),
            buckets=self.rng.randint(1, 4),
            window=self.rng.choice(((10, 1), (30, 5), (2, 0.5))),
            audit="audit" in self.plan,
        )
        put_built_in(self.inner, config, distinct(VISITORS))
        for _ in range(self.rng.randint(1, 3)):
            self._start_adder()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self._start_administrator()

    def _worker(self, process: Process, identity: str) -> Worker:
        return Worker(
            self.db(process),
            concurrency=2,
            grace=5.0,
            limits=self._limits,
            identity=identity,
            beat_seconds=2.0,
        )

    # Who adds

    def _start_adder(self) -> None:
        process = self.process("adder")
        process.reborn = self._start_adder
        self.hub.start(process, "add", lambda: self._add_all(process))

    def _add_all(self, process: Process) -> None:
        rng = self.hub.rng
        while not self.is_calm:
            self.hub.wait(rng.expovariate(1 / self.pause))
            again = list(self.operations.items())
            if again and rng.random() < 0.3:
                once, updates = rng.choice(again)
                self._add(process, updates, once)
            else:
                self._add_drawn(process)

    def _add_drawn(self, process: Process) -> None:
        rng = self.hub.rng
        number = rng.randint(1, 3) * (-1 if "opposite" in self.plan and rng.random() < 0.3 else 1)
        updates = (((rng.choice("pq"), rng.choice("abc")), number),)
        once = None
        if "once" in self.plan and rng.random() < 0.5:
            self._tokens += 1
            once = f"operation {self._tokens}"
            self.operations[once] = updates
        self._add(process, updates, once)

    def _add(self, process: Process, updates: tuple[tuple[Key, int], ...], once: str | None) -> None:
        rng = self.hub.rng
        offset = rng.uniform(-40, 2) if "other times" in self.plan and rng.random() < 0.5 else 0.0

        def run(tr: Any) -> None:
            config = read_config(tr, SEEN)
            at = runtime.time() + offset
            if self.window.add(tr, updates, once, at=at) == "taken":
                width, step = config.window or (0, 1)
                # What is promised: in for a width after the end of its slice.
                tr.notes.append(Visited(updates, once, _milliseconds(at) // step * step + step + width))
            if rng.random() < 0.1:
                self.hub.wait(rng.expovariate(0.5))

        try:
            transact(self.db(process), run)
        except Exception as error:
            if error_code(error) is None:
                raise
        else:
            self.operations.pop(once or "", None)

    # Who changes the queue

    def _start_administrator(self) -> None:
        process = self.process("administrator")
        process.reborn = self._start_administrator
        self.hub.start(process, "change", lambda: self._change(process))

    def _change(self, process: Process) -> None:
        rng, db = self.hub.rng, self.db(process)
        doing: dict[str, Callable[[Any], object]] = {
            "purge": self._purge,
            "rebucket": lambda db: cq.rebucket(db, SEEN, rng.randint(1, 5)),
            "width": lambda db: cq.configure(db, SEEN, window=rng.choice(((10, 1), (30, 5), (2, 0.5)))),
            "retry aside": self._retry,
            "come and go": lambda db: self._come_and_go(),
        }
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(rng.expovariate(1 / 4.0))
            what = rng.choice(kinds)
            self.trace(what)
            try:
                doing[what](db)
            except cq.CqError as error:
                self.trace("refused:", error)
            except Exception as error:
                if error_code(error) is None:
                    raise
            db.shape_note = None

    def _purge(self, db: Any) -> None:
        db.shape_note = _PURGED
        cq.purge(db, SEEN)

    def _retry(self, db: Any) -> None:
        for name in (SEEN, VISITORS):
            retry_aside(db, name)

    def _come_and_go(self) -> None:
        if self.workers.running and self.hub.rng.random() < 0.5:
            self.workers.stop(self.hub.rng.choice(list(self.workers.running)))
        elif len(self.workers.running) < 4:
            self.workers.start()

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Note what is committed, and look at all there is now and then."""
        for note in tr.notes:
            if note == _PURGED:
                self.visits.inside.clear()
            else:
                self.visits.add(version, note)
        self._commits += 1
        if self._commits % _LOOK_COMMITS == 0:
            self._look()

    def _look(self) -> None:
        """Raises `Violation` unless the totals are those of the visits whose rows are there."""
        tr = self.inner.create_transaction().snapshot
        window = WindowKeys(SEEN)
        present = {version_of(row.key[-18:-8]) for row in tr.get_range(*window.rows())}
        clock = START_NS / 1e9 + self.hub.clock
        self.visits.leave(present, clock + (MOST_SKEW if "clocks differ" in self.plan else 0.0))
        if is_purging(self.inner, SEEN):
            return
        found, expected = self._stored(tr, SEEN), self.visits.totals()
        if found != expected:
            raise Violation(f"the totals are {found}, and of the visits in the window {expected}")
        if "purge" in self.plan and self.plan.on & MAY_SET_ASIDE:
            return  # a purge of what cannot be told is not told
        values = dict(cq.CombineQueue(SEEN).scan(self.inner))
        pages: dict[Any, int] = dict(Counter(page for page, _ in values))
        if (visitors := self._stored(tr, VISITORS)) != pages:
            raise Violation(f"the distinct visitors are {visitors}, and there are {pages}")

    def _stored(self, tr: Any, name: str) -> dict[Any, int]:
        """What a queue has, what waits, and what was set aside, together."""
        config = read_config(tr, name)
        sums: defaultdict[Any, int] = defaultdict(int)
        for row in tr.get_range(*QueueKeys(name).values()):
            sums[config.key.decode(QueueKeys(name).encoded_key(row.key))] += codec.decode(row.value)
        for encoded, numbers in read_pending_updates(tr, config).items():
            sums[config.key.decode(encoded)] += sum(numbers)
        for aside in read_aside(tr, name):
            for update in aside.updates:
                sums[config.key.decode(aside.encoded_key)] += update
        return {key: total for key, total in sums.items() if total}

    # The end

    def settle(self) -> None:
        """Read as a user does, and let everything be taken out."""
        self._read()
        process = self.process("ending")
        self.workers.replace()
        while len(self.workers.running) < 2:
            self.workers.start()
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _read(self) -> None:
        """Nobody adds any more: what a reader sees is what is in the window by its clock, whatever waits."""
        if "clocks differ" in self.plan or is_purging(self.inner, SEEN):
            return
        self._look()
        now = START_NS / 1e9 + self.hub.clock
        if any(read_aside(self.inner.create_transaction().snapshot, SEEN)):
            return
        for name in (SEEN, VISITORS):
            if wrong := list(verify(self.inner, name)):
                raise Violation(f"verification finds {wrong[0]}")
        found = transact(self.inner, lambda tr: self.window.items(tr.snapshot, pending=True, now=now)).items
        kept = VisitLog()
        kept.inside = {
            at: each for at, each in self.visits.inside.items() if each.leaves > _milliseconds(now)
        }
        if dict(found) != kept.totals():
            raise Violation(f"a reader sees {dict(found)}, and in the window is {kept.totals()}")

    def _finish(self, process: Process) -> None:
        while self.operations:
            once, updates = next(iter(self.operations.items()))
            self._add(process, updates, once)
        while self.left():
            self._add_again(self.db(process))
            self.hub.wait(5.0)

    def _add_again(self, db: Any) -> None:
        """What was set aside, key by key, and the reports that observers missed."""
        for name in (SEEN, VISITORS):
            key_type = transact(db, lambda tr: read_config(tr, name)).key  # noqa: B023
            found = transact(db, lambda tr: read_aside(tr, name))  # noqa: B023
            for encoded in sorted({each.encoded_key for each in found}):
                with suppress(cq.InvalidData):
                    retry_aside(db, name, key_type.decode(encoded))

    def left(self) -> str:
        if self.operations:
            return f"operations {sorted(self.operations)}"
        tr = self.inner.create_transaction().snapshot
        ranges = {
            "rows of the window": WindowKeys(SEEN).rows(),
            "operations of the window": WindowKeys(SEEN).operations(),
        }
        for name in (SEEN, VISITORS):
            queue = QueueKeys(name)
            ranges |= {f"rows of {name}": queue.all_rows(), f"notifications of {name}": queue.notifications()}
        for what, bounds in ranges.items():
            if found := tr.get_range(*bounds, limit=1).to_list():
                return f"{what}: {found}"
        if any(read_aside(tr, name) for name in (SEEN, VISITORS)):
            return "what was set aside"
        return "a purge" if is_purging(self.inner, SEEN) else ""

    def check(self) -> None:
        """Nothing is in the window any more, and nothing is left of it."""
        self._look()
        if found := dict(cq.CombineQueue(SEEN).scan(self.inner)):
            raise Violation(f"long after, there is still {found}")
        if found := dict(cq.CombineQueue(VISITORS).scan(self.inner)):
            raise Violation(f"long after, the distinct visitors are {found}")


def _milliseconds(seconds: float) -> int:
    """Times count in milliseconds, rounded up; what a float of today's seconds cannot tell is no part of one."""
    return ceil(round(seconds * 1000, 3))
