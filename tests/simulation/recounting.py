"""The base of systems of queues that are compared with a recount of what was committed.

Adders add what a system draws, some of it several times under one operation id. An administrator purges and changes the
queues, and workers come and go. At the end everything that was set aside or missed is retried, and nothing waits.

A system has `make`, `drawn`, `count` and `check`, and more as far as it differs from the defaults here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import cq
from cq import admin
from cq.admin.purging import purging_buckets
from cq.config.queue import read_config
from cq.keys import below
from cq.keys.missed import MissedKeys
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.queue.set_aside import read_aside, retry_aside
from cq.store.transact import transact
from tests.kit.queues import values_of, waiting_of
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import START_NS, Process
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario, first_row, ranges_of
from tests.simulation.store import CommitRequest

_LOOK_COMMITS: Final = 8
_LAST_WORKERS: Final = 2


@dataclass(frozen=True)
class Purged:
    """A queue is purged."""

    queue: str


class Recount(Scenario):
    """One run.

    Attributes:
        operations: {operation id: what was drawn}, until it is known to be committed.
        pause: the mean seconds between two adds of an adder.
        limits: those of the workers' passes.
        version: of the latest commit.
    """

    queues: ClassVar[tuple[str, ...]]
    """The queues that the administrator changes."""
    adders: ClassVar[tuple[int, int]] = (1, 3)
    """The least and the largest number of adders."""
    slow_adds: ClassVar[float] = 0.1
    """The share of adds that take about a second."""
    change_seconds: ClassVar[float] = 4.0
    """The mean seconds between two changes by the administrator."""

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.operations: dict[str, Any] = {}
        self.pause = self.rng.choice((0.05, 0.3, 1.0))
        self.limits = Limits()
        self.workers = WorkerPool(self, self.make_worker)
        self._ids: set[str] = set()
        self._tokens = self._commits = self.version = 0

    # What a system is

    @abstractmethod
    def make(self) -> None:
        """Make the queues."""

    @abstractmethod
    def drawn(self) -> Any:
        """What an adder adds next; its `once` is an operation id, or None."""

    def write(self, tr: Any, drawn: Any) -> Any:
        """Add what was drawn in a transaction; returns the note of its commit, with its `once`; None for nothing."""
        cq.CombineQueue(drawn.queue).add(tr, drawn.updates, once=drawn.once)
        return drawn

    @abstractmethod
    def count(self, note: Any, version: int) -> None:
        """A note is committed: the first one with its operation id, or a purge."""

    def committed(self, tr: CommitRequest) -> None:
        """All notes of a transaction are counted. Raises `Violation`."""

    def look(self) -> None:
        """Compare what is stored, now and then. Raises `Violation`."""

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        """{kind: changes the named queue}, in addition to those that all systems have."""
        return {}

    def finish(self, process: Process) -> None:
        """All operations are committed: change what must be changed before the end."""

    @property
    def names(self) -> tuple[str, ...]:
        """All queues in which nothing may wait at the end."""
        return self.queues

    def app(self) -> cq.App:
        """The code of the workers."""
        return cq.App()

    def make_worker(self, process: Process, identity: str) -> Worker:
        """A worker with the code of the workers, as it is now."""
        return self.worker(process, identity, self.app(), concurrency=2, limits=self.limits, beat=2.0)

    def begin(self) -> None:
        self.make()
        for _ in range(self.rng.randint(*self.adders)):
            self.start_process("adder", "add", self.add_all)
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self.start_process("administrator", "change", self._change)

    @property
    def now(self) -> float:
        """The true time, in seconds since 1970."""
        return START_NS / 1e9 + self.hub.clock

    @property
    def skew(self) -> float:
        """Seconds by which the clock of a process may be wrong."""
        return self.max_skew if "clocks differ" in self.plan else 0.0

    # Adders

    def add_all(self, process: Process) -> None:
        rng = self.hub.rng
        while not self.is_calm:
            self.hub.wait(rng.expovariate(1 / self.pause))
            again = list(self.operations.values())
            self.add(process, rng.choice(again) if again and rng.random() < 0.3 else self.new_drawn())

    def new_drawn(self) -> Any:
        """Draw what is added next, and remember it until it is known to be committed."""
        drawn = self.drawn()
        if drawn.once is not None:
            self.operations[drawn.once] = drawn
        return drawn

    def new_operation(self) -> str | None:
        """An operation id for half of what is drawn, in plans with "once"."""
        self._tokens += 1
        return f"operation {self._tokens}" if "once" in self.plan and self.hub.rng.random() < 0.5 else None

    def add(self, process: Process, drawn: Any) -> None:
        """Add what was drawn. Without an operation id, a retry after a commit of unknown result adds it again."""

        def run(tr: Any) -> None:
            note = self.write(tr, drawn)
            if note is not None:
                tr.notes.append(note)
            if self.hub.rng.random() < self.slow_adds:
                self.hub.wait(self.hub.rng.expovariate(1.0))

        if self.attempt(lambda: transact(self.db(process), run)) is None:
            self.operations.pop(drawn.once or "", None)

    # Changes

    def _change(self, process: Process) -> None:
        rng, db = self.hub.rng, self.db(process)
        doing: dict[str, Callable[[str], object]] = {
            "purge": lambda name: self._purge(db, name),
            "rebucket": lambda name: admin.rebucket(db, name, rng.randint(1, 4)),
            "retry aside": lambda name: [retry_aside(db, each) for each in self.names],
            "come and go": lambda name: self.workers.come_and_go(),
            **self.changes(db),
        }
        kinds = [what for what in doing if what in self.plan]
        while kinds and not self.is_calm:
            self.hub.wait(rng.expovariate(1 / self.change_seconds))
            what, name = rng.choice(kinds), rng.choice(self.queues)
            self.trace(what, name)
            self.attempt(partial(doing[what], name), cq.CqError)
            db.shape_note = None

    def _purge(self, db: Any, name: str) -> None:
        db.shape_note = Purged(name)
        admin.purge(db, name)

    def die_soon(self) -> None:
        """Now and then, let the worker that has just committed die before its next passes, in plans with "deaths"."""
        task = self.hub.current
        process = None if task is None else task.process
        if process in self.workers.running and self.happens("deaths", 0.5):
            process.dies_in = self.hub.rng.randint(1, 10)

    # What is committed, and what is stored

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        for note in tr.notes:
            once = getattr(note, "once", None)
            if once is None or once not in self._ids:
                self._ids.add(once or "")
                self.count(note, version)
        self.version = version
        self.committed(tr)
        self._commits += 1
        if self._commits % _LOOK_COMMITS == 0:
            self.look()

    def stored(self, name: str) -> dict[Any, Any]:
        """{key: value} of a queue."""
        return values_of(self.inner, name)

    def parts(self, name: str) -> dict[Any, list[Any]]:
        """{key: its value, if it has one, and the updates that wait} of a queue."""
        found = {key: [value] for key, value in self.stored(name).items()}
        for key, updates in self.waiting(name).items():
            found.setdefault(key, []).extend(updates)
        return found

    def waiting(self, name: str) -> dict[Any, list[Any]]:
        """{key: updates} of a queue that are queued, staged or set aside."""
        found = waiting_of(self.inner, name)
        for key, updates in self.aside(name).items():
            found.setdefault(key, []).extend(updates)
        return found

    def aside(self, name: str) -> dict[Any, list[Any]]:
        """{key: updates} of a queue that were set aside."""
        snapshot = self.inner.create_transaction().snapshot
        config = read_config(snapshot, name)
        found: dict[Any, list[Any]] = {}
        for each in read_aside(snapshot, name):
            if each.updates:  # else a missed report
                found.setdefault(config.key.decode(each.encoded_key), []).extend(each.updates)
        return found

    # The end

    def settle(self) -> None:
        """All updates are combined, and those that were set aside are added again."""
        self.workers.replace(least=_LAST_WORKERS)
        self.start_process("ending", "finish", self._finish)

    def _finish(self, process: Process) -> None:
        while self.operations:
            self.add(process, next(iter(self.operations.values())))
        self.finish(process)
        while self.left():
            for name in self.names:
                retry_aside(self.db(process), name)
            self.hub.wait(5.0)

    def left(self) -> str:
        if self.operations:
            return f"operations {sorted(self.operations)}"
        snapshot = self.inner.create_transaction().snapshot
        for name in self.names:
            if found := first_row(snapshot, self.ranges(name)):
                return f"{name}: {found}"
        return next((f"a purge of {name}" for name in self.queues if purging_buckets(self.inner, name)), "")

    def ranges(self, name: str) -> dict[str, tuple[bytes, bytes]]:
        """{name: range of keys} of a queue in which nothing is left at the end."""
        return {**ranges_of(name), "missed reports": below(MissedKeys(name).prefix)}
