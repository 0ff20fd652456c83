"""The simulated system: one store, its processes, what goes wrong with them, and the log of all that is committed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import cq
from cq import codec
from cq.keys import QueueKeys
from cq.observers.exports import find_export
from cq.observers.exportspec import export_spec
from cq.observers.sqlcheck import init
from cq.observers.top import top
from cq.store.embedded import Database
from tests.simulation.actors import Adders, Administrator, Workers
from tests.simulation.application import SUMS, TEXTS, app
from tests.simulation.emitting import Emitters, Flushed
from tests.simulation.hub import Hub, Process, SimMachine
from tests.simulation.model import Added, Feed, QueueModel, Reported, Shaped, Violation
from tests.simulation.plan import Plan
from tests.simulation.sql import Connections
from tests.simulation.store import Faults, FaultyDatabase, FaultyTransaction, Surroundings, WatchBoard

TABLE: Final = "sums_table"
URL_ENV: Final = "CQ_SIMULATED_URL"
TOP: Final = 3
_MOST_BYTES: Final = 2_000_000


class World:
    """One run.

    Args:
        plan: what happens in it.
        folder: for its files.
        trace: called with each thing worth telling.

    Attributes:
        is_calm: whether nothing goes wrong any more, and nothing new is begun.
        extra: the version of the observer that comes and goes; 0 while there is none.
        violations: the promises that were seen broken.
    """

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        self.plan = plan
        self.hub = Hub(plan.seed)
        self.machine = SimMachine(self.hub)
        self.rng = plan.rng("world")
        self.is_calm = False
        self.extra = 0
        self.violations: list[str] = []
        self.inner = Database(folder / "store.db", power_safe=False)
        self.report_path = folder / "report.db"
        self.models = {name: QueueModel(name, is_text=name == TEXTS) for name in (TEXTS, SUMS)}
        self.feed = Feed()
        self.faults = Faults(
            read_error=plan.chance("reads fail", 0.05),
            late=plan.chance("calls are late", 0.02),
            conflict=plan.chance("conflicts", 0.3),
            unknown=plan.chance("unknown commits", 0.3),
            too_large=plan.chance("too large", 0.1),
            watch_late=plan.chance("watches are late", 0.6),
            watch_early=plan.chance("watches fire early", 0.3),
            watch_error=plan.chance("watches fail", 0.3),
        )
        self.sky = Process("sky")
        self._board = WatchBoard()
        self._trace = trace
        self._last_shape = 0
        self._numbers = 0
        self._databases: dict[Process, FaultyDatabase] = {}
        self.hub.trace = self.trace
        self.hub.on_doom = self._die
        self.hub.on_freeze = self._freeze
        self.connections = Connections(self)
        self.adders, self.workers, self.administrator = Adders(self), Workers(self), Administrator(self)
        self.emitters = Emitters(self)

    def begin(self) -> None:
        """Make the queues, and start everybody."""
        random.seed(self.plan.seed)  # what libraries draw from
        os.environ[URL_ENV] = f"sqlite:///{self.report_path}"
        first = app(self, 0)
        first.configure(self.inner, TEXTS, value=str, buckets=self.rng.randint(1, 5))
        first.configure(self.inner, SUMS, buckets=self.rng.randint(1, 5), audit="audit" in self.plan)
        self.models[TEXTS].observers.append((0, {"anchor": 1}))
        self.models[SUMS].observers.append((0, {"anchor": 1}))
        if "top" in self.plan:
            cq.put_observer(self.inner, SUMS, top(TOP, every=self.rng.choice((0, 500)), ranks=True))
        if "table" in self.plan:
            cq.put_observer(self.inner, SUMS, export_spec(TABLE, url_env=URL_ENV))
            found = find_export(self.inner, SUMS)
            init(found.reporting, found.definition)
            found.reporting.close()
        for _ in range(self.rng.randint(1, 3)):
            self.adders.start()
        for _ in range(self.rng.randint(1, 3)):
            self.workers.start()
        self.administrator.start()
        if "emitters" in self.plan:
            self.emitters.start()
        self.hub.start(self.sky, "jump", self._jump)

    def happens(self, what: str, most: float) -> bool:
        """Whether a fault happens now that happens with at most this probability."""
        return what in self.plan and not self.is_calm and self.hub.rng.random() < self.plan.chance(what, most)

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        self.is_calm = True
        self.faults.calm()
        for process in self._databases:
            process.dies_in = process.freezes_in = None
            process.frozen_until = 0.0

    def close(self) -> None:
        """End what is left of it."""
        self.hub.end()
        self.connections.close()
        self.inner.close()

    def trace(self, *what: object) -> None:
        """Tell of something, with the time and the task."""
        task = self.hub.current
        who = f"{task.process}/{task.name}" if task else "-"
        self._trace(f"{self.hub.clock:9.3f} {who:28} {' '.join(map(str, what))}")

    # Processes

    def process(self, name: str) -> Process:
        """A new process, with its own view of the store."""
        self._numbers += 1
        process = Process(f"{name}-{self._numbers}")
        rng = self.hub.rng
        if "clocks differ" in self.plan:
            process.skew = rng.uniform(-100, 100)
        if "deaths" in self.plan and not self.is_calm and rng.random() < 0.8:
            process.dies_in = 1 + int(rng.expovariate(1 / 300))
        if "freezes" in self.plan and not self.is_calm and rng.random() < 0.5:
            process.freezes_in = 1 + int(rng.expovariate(1 / 300))
        around = Surroundings(
            rng,
            self.hub.wait,
            lambda seconds, call: self.hub.start(process, "network", call, seconds),
            self._commit,
            self._committed,
            self._refused,
            self.trace,
        )
        self._databases[process] = FaultyDatabase(self.inner, self.faults, around, self._board)
        return process

    def db(self, process: Process) -> FaultyDatabase:
        """The store as a process sees it."""
        return self._databases[process]

    def _die(self, process: Process) -> None:
        """A process dies, and another one takes its place."""
        self.hub.kill(process)
        self.connections.drop(process)
        self.db(process).drop()
        if not self.is_calm:
            self.hub.start(Process("parent"), "restart", process.reborn, self.hub.rng.expovariate(1 / 3))

    def _freeze(self, process: Process) -> None:
        """A process stands still for a while, and then goes on as if nothing had happened."""
        seconds = self.hub.rng.expovariate(1 / 15)
        self.trace("stands still:", process, f"for {seconds:.1f} s")
        process.frozen_until = self.hub.clock + seconds

    def _jump(self) -> None:
        """The store's clock goes ahead now and then, as a cluster's versions do when it recovers."""
        while "clock jumps" in self.plan and not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / 10))
            self.hub.jumped += self.hub.rng.uniform(0, 100)

    # What is committed

    def _commit(self, inner: Any) -> None:
        self.machine.in_store = True
        try:
            inner.commit().wait()
        finally:
            self.machine.in_store = False

    def _committed(self, tr: FaultyTransaction, version: int) -> None:
        """Every commit that has happened, in order; its owner may never hear of it."""
        self.trace("commits", version, f"(read {tr.read_version})", *tr.notes)
        try:
            if tr.size > _MOST_BYTES:
                raise Violation(f"a transaction of {tr.size:,} bytes has been committed")
            self._log(tr, version)
        except Violation as violation:
            self.violations.append(str(violation))

    def _log(self, tr: FaultyTransaction, version: int) -> None:
        for name, model in self.models.items():
            begin, end = QueueKeys(name).aside()
            for key in tr.stamped:
                if begin <= key < end:
                    model.touched.add(key_of_aside(name, key))
        notes = list(tr.notes)
        if tr.has_changed_shapes:
            self._last_shape = version
            notes += [tr.database.shape_note] if tr.database.shape_note else []
        for note in notes:
            if isinstance(note, Flushed):
                note.account.commit(note)
            else:
                self._log_note(tr, version, note)

    def _log_note(self, tr: FaultyTransaction, version: int, note: Added | Shaped | Reported) -> None:
        model = self.models[note.queue]
        if isinstance(note, Added):
            model.add(version, note)
        elif isinstance(note, Shaped):
            self._log_shape(model, version, note)
        else:
            if (note.queue, note.observer) == (TEXTS, "anchor"):
                self.feed.added[note.key].append(note.new)
            model.report(tr.read_version, note)

    def _log_shape(self, model: QueueModel, version: int, note: Shaped) -> None:
        if note.purged:
            model.purges.append(version)
        if note.observers is not None:
            model.observers.append((version, note.observers))
            self.extra = note.observers.get("extra", 0)

    def _refused(self, tr: FaultyTransaction, code: int) -> None:
        """Promise 1: an add conflicts with nothing but a change of shape."""
        adds = [note for note in tr.notes if isinstance(note, Added)]
        if code == 1020 and adds and self._last_shape <= tr.read_version:
            self.violations.append(
                f"an add has a conflict: {adds}, read at {tr.read_version}, the latest shape is of {self._last_shape}"
            )


def key_of_aside(name: str, key: bytes) -> str:
    """The key of which something is set aside, given the store's key with a versionstamp's place in it."""
    encoded = QueueKeys(name).parse_aside(key[:-4])[0]
    return str(codec.decode(encoded)) if encoded else ""
