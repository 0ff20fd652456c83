"""The system of sketches: distinct counts and frequent texts beside an exact recount of every committed item.

Adders add items, batches and sketches to two queues. The sketch of a distinct count depends on the set of items only,
and texts this few are counted exactly. So each value must equal the recount, to the byte, however workers grouped the
updates: a lost update, one that counts twice, or a forgotten part of a staged fold shows in one of the queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import cq
from cq.combiners import BUILT_IN
from cq.encoding import codec
from cq.observers.top import Ranking, top
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.queue.set_aside import read_aside
from cq.store.api import error_code
from cq.store.transact import transact
from tests.helpers import nothing_queued
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import Process
from tests.simulation.model import Added, Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

VISITORS: Final = "visitors"
TEXTS: Final = "texts"
_COMBINERS: Final = {VISITORS: "distinct", TEXTS: "frequent"}
_KEYS: Final = 5
_NAMES: Final = {VISITORS: 900, TEXTS: 40}  # an array of registers begins at 385 visitors
_MOST: Final = {VISITORS: 300, TEXTS: 60}  # items of a batch


class Sketching(Scenario):
    """One run."""

    beginners: ClassVar[tuple[str, ...]] = ("add", "change", "restart")

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.counts: dict[str, dict[str, Counter[str]]] = {VISITORS: {}, TEXTS: {}}
        self.items: dict[int, list[tuple[str, list[str]]]] = {}
        self.operations: dict[str, tuple[Added, int]] = {}
        self.seen: set[str] = set()
        self.workers = WorkerPool(self, self._worker)
        self._limits = Limits(
            read_bytes=self.rng.choice((300, 2_000, 20_000)),
            repack_bytes=self.rng.choice((0, 2_000)),
            max_report=self.rng.choice((1, 20)),
        )
        self._number = 0

    def begin(self) -> None:
        observers = [top(every=0)] if "top" in self.plan else []
        for name, combiner in _COMBINERS.items():
            cq.configure(
                self.inner, name, combiner=combiner, buckets=self.rng.randint(1, 3), observers=observers
            )
        for _ in range(2):
            self._start_adder()
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

    # Adders and changes

    def _start_adder(self) -> None:
        process = self.process("adder")
        process.reborn = self._start_adder
        self.hub.start(process, "add", lambda: self._add_all(process))

    def _add_all(self, process: Process) -> None:
        while not self.is_calm:
            if self.operations and self.hub.rng.random() < 0.2:
                self._add(process, *self.hub.rng.choice(list(self.operations.values())))
            else:
                self._add(process, *self._drawn(self.hub.rng))
            self.hub.wait(self.hub.rng.expovariate(3.0))

    def _drawn(self, rng: Random) -> tuple[Added, int]:
        """Updates of some keys: an item, a batch, or a sketch of a batch. Their items are noted by a number."""
        self._number += 1
        name = rng.choice(list(_COMBINERS))
        updates: list[tuple[str, Any]] = []
        noted = self.items[self._number] = []
        for key in rng.sample(range(_KEYS), rng.randint(1, 3)):
            items = [f"item {rng.randrange(_NAMES[name])}" for _ in range(rng.randint(1, _MOST[name]))]
            update: Any = items
            match rng.choice(("item", "batch", "sketch")):
                case "item":
                    update, items = items[0], items[:1]
                case "sketch" if "sketches" in self.plan:
                    update = BUILT_IN[_COMBINERS[name]].combine(None, [items])
            updates.append((str(key), update))
            noted.append((str(key), items))
        added = Added(name, tuple(updates), f"operation {self._number}" if "once" in self.plan else None)
        if added.once:
            self.operations[added.once] = added, self._number
        return added, self._number

    def _add(self, process: Process, added: Added, number: int) -> None:
        """Add updates; without an operation id, a retry after an unknown commit adds them again."""

        def run(tr: Any) -> None:
            cq.CombineQueue(added.queue).add(tr, added.updates, once=added.once)
            tr.notes.append((added, number))

        try:
            transact(self.db(process), run)
        except Exception as error:
            if error_code(error) is None:
                raise
        else:
            self.operations.pop(added.once or "", None)

    def _start_administrator(self) -> None:
        process = self.process("administrator")
        process.reborn = self._start_administrator
        self.hub.start(process, "change", lambda: self._change(process))

    def _change(self, process: Process) -> None:
        while "rebucket" in self.plan and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(0.3))
            try:
                cq.rebucket(
                    self.db(process), self.hub.rng.choice(list(_COMBINERS)), self.hub.rng.randint(1, 3)
                )
            except cq.CqError as error:
                self.trace("refused:", error)
            except Exception as error:
                if error_code(error) is None:
                    raise

    # The recount

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        for added, number in tr.notes:
            if added.once is None or added.once not in self.seen:
                self.seen.add(added.once or "")
                for key, items in self.items[number]:
                    self.counts[added.queue].setdefault(key, Counter()).update(items)

    def settle(self) -> None:
        process = self.process("ending")
        self.hub.start(process, "finish", lambda: self._finish(process))

    def _finish(self, process: Process) -> None:
        while self.operations:
            self._add(process, *next(iter(self.operations.values())))

    def left(self) -> str:
        if self.operations or any(task.name == "finish" for task in self.hub.tasks if task.process.is_alive):
            return "operations that are not known to be committed"
        return ", ".join(f"updates of {name}" for name in _COMBINERS if not nothing_queued(self.inner, name))

    def check(self) -> None:
        """Raises `Violation` unless each value equals the recount, and the top has the values' estimates."""
        for name, combiner in _COMBINERS.items():
            expected = {
                key: BUILT_IN[combiner].combine(None, [list(counts.elements())])
                for key, counts in self.counts[name].items()
            }
            found = dict(cq.CombineQueue[str, Any](name).scan(self.inner))
            aside = transact(self.inner, lambda tr, name=name: read_aside(tr, name))  # type: ignore[misc]
            if aside and "too large" not in self.plan:
                raise Violation(f"{name}: set aside though nothing can have failed: {aside!r}")
            for key in {codec.decode(each.encoded_key) for each in aside}:
                found[key] = expected[key]
            wrong = {key: (found.get(key), each) for key, each in expected.items() if found.get(key) != each}
            if wrong:
                raise Violation(f"{name}: {{key: (found, expected)}} is {wrong}")
            if "top" in self.plan and not aside:
                self._check_top(name, {key: value.score for key, value in expected.items()})

    def _check_top(self, name: str, expected: dict[str, int]) -> None:
        page = transact(self.inner, lambda tr: Ranking[str, Any](name).page(tr.snapshot, len(expected) + 1))
        if (found := {entry.key: entry.score for entry in page.entries}) != expected:
            raise Violation(f"{name}: the top is {found}, expected {expected}")
