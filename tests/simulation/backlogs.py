"""The system of deep backlogs: queues without observers, more updates than a pass can read, and drains beside workers.

A worker sorts a deep backlog into runs and merges them (`cq.passes.sorting`). Here several processes do so over
one bucket:
workers, and drains that start and end. One queue counts, the other one keeps the latest update, so the model needs only
the updates in commit order. At the end there is another deep backlog, and two drains without faults must empty it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

import cq
from cq import admin
from cq.keys import QueueKeys
from cq.observers.worker.worker import Worker
from cq.passes import repacking
from cq.passes.plan import LOCAL_LIMITS, Limits
from tests.simulation.hub import Process
from tests.simulation.model import Added, Violation
from tests.simulation.plan import Plan
from tests.simulation.recounting import Purged, Recount
from tests.simulation.store import CommitRequest

COUNTS: Final = "counts"
LATEST: Final = "latest"
_LAST_LIMITS: Final = Limits(read_bytes=500, repack_bytes=500, max_report=10)
_LOCAL_EVERY: Final = 16
_LAST_LATENCY: Final = 0.03
"""So slow that passes take longer than a worker waits after a conflict: neither worker gets ahead by waiting less."""


class Backlogs(Recount):
    """One run."""

    queues: ClassVar[tuple[str, ...]] = (COUNTS, LATEST)
    adders: ClassVar[tuple[int, int]] = (1, 1)
    slow_adds: ClassVar[float] = 0.0
    change_seconds: ClassVar[float] = 2.0

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.updates: dict[str, dict[str, list[int]]] = {COUNTS: {}, LATEST: {}}
        self.row_bytes = self.rng.choice((100, 300, 8_000))
        self._limits = [self._drawn_limits(), self._drawn_limits()]
        # Such a worker takes a whole backlog in one pass.
        if plan.seed % _LOCAL_EVERY == _LOCAL_EVERY - 1:
            self._limits[1] = LOCAL_LIMITS
        self._number = 0
        self._next: tuple[str, list[int]] = COUNTS, []
        self._rows: dict[str, tuple[bytes, list[Any]]] = {}

    def _drawn_limits(self) -> Limits:
        read_bytes = self.rng.choice((500, 1_500))
        return Limits(
            read_bytes=read_bytes,
            load_bytes=self.rng.choice((50, 5_000)),
            write_bytes=self.rng.choice((1_500, 10_000)),
            repack_bytes=self.rng.choice((0, read_bytes, 2 * read_bytes)),
            max_report=self.rng.choice((5, 20)),
        )

    def around(self) -> AbstractContextManager[object]:
        """Rows that are as small as their backlogs, so that a run has several."""
        return patch.object(repacking, "ROW_BYTES", self.row_bytes)

    def begin(self) -> None:
        super().begin()
        self.start_process("drain", "drain", self._drain_again)

    def make(self) -> None:
        cq.configure(self.inner, COUNTS, buckets=self.rng.randint(1, 2))
        cq.configure(self.inner, LATEST, combiner="last", buckets=self.rng.randint(1, 2))

    def make_worker(self, process: Process, identity: str) -> Worker:
        self.limits = self.hub.rng.choice(self._limits)
        return super().make_worker(process, identity)

    # Adders

    def add_all(self, process: Process) -> None:
        while not self.is_calm:
            self.fill(process, self.hub.rng.choice(self.queues), 60, 5)
            self.hub.wait(self.hub.rng.expovariate(0.5))

    def fill(self, process: Process, name: str, number: int, each: int) -> None:
        """Make a deep backlog: `number` keys in another order each time, `each` of them in a transaction."""
        rng = self.hub.rng
        for _ in range(rng.randint(1, 3)):
            keys = rng.sample(range(number), number)
            for start in range(0, number, each):
                if self.operations and rng.random() < 0.1:
                    self.add(process, rng.choice(list(self.operations.values())))
                self._next = name, keys[start : start + each]
                self.add(process, self.new_drawn())

    def drawn(self) -> Added:
        """A newer update of each of the next keys."""
        name, keys = self._next
        self._number += 1
        return Added(name, tuple((f"{key:04}", self._number) for key in keys), self.new_operation())

    def changes(self, db: Any) -> Mapping[str, Callable[[str], object]]:
        return {"rebucket": lambda name: admin.rebucket(db, name, self.hub.rng.randint(1, 2))}

    # Drains

    def _drain_again(self, process: Process) -> None:
        while "drains" in self.plan and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1.0))
            self.drain(process)

    def drain(self, process: Process) -> None:
        """What `cq worker --drain` does."""
        self.attempt(self.make_worker(process, f"{process}-{self.hub.turns}").drain)

    # The log

    def count(self, note: Added | Purged, version: int) -> None:
        assert isinstance(note, Added)
        for key, update in note.updates:
            self.updates[note.queue].setdefault(key, []).append(update)

    def committed(self, tr: CommitRequest) -> None:
        """Of rows that are written again, check how old they seem to be."""
        # The values of this queue change with each update: those of the other one may not.
        self._look_at_first_row(COUNTS)

    def _look_at_first_row(self, name: str) -> None:
        """Raises `Violation` if the first row has become younger, and all that has been queued still is.

        The age of the oldest update is that of its row. Operation ids are out of the question, as rows of later tries
        are dropped.
        """
        keys, snapshot = QueueKeys(name), self.inner.create_transaction().snapshot
        ranges = (keys.values(), keys.aside(), (keys.prefix + b"s", keys.prefix + b"t"))
        values = [(row.key, row.value) for bounds in ranges for row in snapshot.get_range(*bounds)]
        first = self._first_row(name)
        before, known = self._rows.get(name, (b"", []))
        self._rows[name] = first, values
        if known == values and before and before < first and not {"once", "rebucket"} & self.plan.on:
            raise Violation(f"{name}: the first row is {first!r} after {before!r}, and no value has changed")

    # The end

    def settle(self) -> None:
        """Two drains side by side empty a deep backlog."""
        for worker in list(self.workers.running):
            self.workers.stop(worker)
        self.start_process("ending", "finish", self._drain_last)

    def _drain_last(self, process: Process) -> None:
        while self.operations:
            self.add(process, next(iter(self.operations.values())))
        self.fill(process, LATEST, 300, 10)
        self._limits = [_LAST_LIMITS]
        self.faults.latency = _LAST_LATENCY
        for _ in range(2):
            self.start_process("drain", "drain", self.drain)

    def left(self) -> str:
        tasks = [task.name for task in self.hub.tasks if task.process.is_alive]
        if under_way := {"finish", "drain"} & set(tasks):
            return f"deep backlogs: {', '.join(under_way)}"
        return ", ".join(f"rows of {name}" for name in self.updates if self._first_row(name))

    def check(self) -> None:
        """Raises `Violation` unless each value is that of its updates in commit order."""
        for name, updates in self.updates.items():
            expected = {
                key: sum(each) if name == COUNTS else each[-1] for key, each in sorted(updates.items())
            }
            found, aside = self.stored(name), self.aside(name)
            if aside and "too large" not in self.plan:
                raise Violation(f"{name}: set aside though nothing can have failed: {aside!r}")
            for key in aside:
                found[key] = expected[key]  # what was set aside has no place in the order any more
            wrong = {key: (found.get(key), each) for key, each in expected.items() if found.get(key) != each}
            if wrong:
                raise Violation(f"{name}: {{key: (found, expected)}} is {wrong}")

    def _first_row(self, name: str) -> bytes:
        """The key of a queue's first row; empty without any."""
        rows = self.inner.create_transaction().snapshot.get_range(*QueueKeys(name).all_rows(), limit=1)
        return next((row.key for row in rows), b"")
