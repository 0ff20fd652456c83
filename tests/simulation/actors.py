"""Those who use the system: adders, an administrator, and whoever starts the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cq
from cq.batch import Limits
from cq.observers.worker import Worker
from cq.setaside import retry_aside
from cq.store.api import error_code
from cq.store.transact import transact
from tests.simulation.application import BAD_KEY, SUMS, TEXTS, app
from tests.simulation.hub import Process
from tests.simulation.model import Added, Shaped

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import World


class Adders:
    """Processes that add to the queues, each transaction something that is added nowhere else.

    Attributes:
        operations: those begun with an id that are not known to be committed; whoever comes tries them again.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: dict[str, Added] = {}
        self.rng = world.hub.rng
        self.keys = [f"k{number}" for number in range(world.rng.randint(1, 6))]
        self.most = world.rng.choice((1, 2, 5, 20))
        self.pause = world.rng.choice((0.005, 0.05, 0.5))
        self.slow = world.rng.choice((0.0, 0.05, 0.3))
        self._tokens = 0

    def start(self) -> None:
        """Another adder."""
        process = self.world.process("adder")
        process.reborn = self.start
        self.world.hub.start(process, "add", lambda: self._run(process))

    def _run(self, process: Process) -> None:
        while not self.world.is_calm:
            self.world.hub.wait(self.rng.expovariate(1 / self.pause))
            again = list(self.operations.values())
            self.add(process, self.rng.choice(again) if again and self.rng.random() < 0.3 else self._drawn())

    def add(self, process: Process, note: Added) -> None:
        """Add something; without an operation id each try is something else."""
        tries = 0

        def run(tr: Any) -> None:
            nonlocal tries
            tries += 1
            what = note if note.once or tries == 1 else self._drawn(note.queue)
            cq.CombineQueue(note.queue).add(tr, what.updates, once=note.once)
            tr.notes.append(what)
            if self.rng.random() < self.slow:
                self.world.hub.wait(self.rng.expovariate(1.0))

        try:
            transact(self.world.db(process), run)
        except cq.QueueFull:
            self.world.trace("queue is full")
            self.world.hub.wait(0.5)
        except Exception as error:
            if error_code(error) is None:
                raise
        else:
            self.operations.pop(note.once or "", None)

    def _drawn(self, queue: str | None = None) -> Added:
        rng, plan = self.rng, self.world.plan
        name = queue or rng.choice((TEXTS, SUMS))
        keys = [rng.choice(self.keys) for _ in range(rng.randint(1, self.most))]
        if "bad keys" in plan and name == TEXTS and rng.random() < 0.1:
            keys.append(BAD_KEY)
        updates = tuple((key, self._update(name)) for key in keys)
        if queue is None and "once" in plan and rng.random() < 0.6:
            self._tokens += 1
            note = Added(name, updates, f"operation {self._tokens}")
            self.operations[note.once or ""] = note
            return note
        return Added(name, updates, None)

    def _update(self, queue: str) -> Any:
        if queue == TEXTS:
            self._tokens += 1
            return f"{self._tokens}."
        opposite = "opposite" in self.world.plan and self.rng.random() < 0.5
        return self.rng.randint(1, 3) * (-1 if opposite else 1)


class WorkerPool:
    """The workers' processes, and who starts them.

    Args:
        world: whose they are.
        make: makes a process's worker, of this identity.
    """

    def __init__(self, world: Scenario, make: Callable[[Process, str], Worker]) -> None:
        self._world, self._make = world, make
        self.running: dict[Process, Worker] = {}

    def start(self, identity: str | None = None) -> Process:
        """Start one, with the code as it is now."""
        process = self._world.process("worker")
        worker = self._make(process, identity or process.name)
        self.running[process] = worker
        process.reborn = lambda: self._again(identity or process.name)
        process.on_death.append(lambda: self.running.pop(process, None))

        def run() -> None:
            worker.run()
            self.running.pop(process, None)
            self._world.trace("ends")

        self._world.hub.start(process, "run", run)
        return process

    def stop(self, process: Process) -> None:
        """Stop one in good order; nobody takes its place."""
        process.reborn = lambda: None
        worker = self.running.pop(process, None)
        if worker is not None:
            worker.stop()

    def replace(self) -> None:
        """Stop all, and start as many with the code as it is now."""
        for process in list(self.running):
            self.stop(process)
            self.start()

    def _again(self, identity: str) -> None:
        # A parent starts a dead worker again under its name; or its machine is gone, and another one comes.
        self.start(identity if self._world.hub.rng.random() < 0.5 else None)


class Workers(WorkerPool):
    """The workers of the queues, with the application as it is when they are started."""

    def __init__(self, world: World) -> None:
        rng = world.rng
        small = rng.random() < 0.6
        limits = Limits(
            read_bytes=rng.choice((60, 300, 2_000)) if small else 240_000,
            load_bytes=rng.choice((50, 500)) if small else 400_000,
            write_bytes=rng.choice((200, 1_000)) if small else 1_000_000,
            overload_seconds=rng.choice((0.2, 5.0)),
        )
        limits = replace(limits, repack_bytes=limits.write_bytes // 2)
        concurrency, beat_seconds = rng.choice((1, 2, 4)), rng.choice((0.5, 2.0, 4.0))

        def make(process: Process, identity: str) -> Worker:
            return Worker(
                world.db(process),
                app(world, world.extra),
                concurrency=concurrency,
                grace=5.0,
                limits=limits,
                identity=identity,
                beat_seconds=beat_seconds,
            )

        super().__init__(world, make)


class Administrator:
    """Does all that can be done to a queue in use."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.process = world.process("administrator")
        self.versions = 0
        self.doing: dict[str, Callable[[str], object]] = {
            "rebucket": self._rebucket,
            "purge": self._purge,
            "pause": self._pause,
            "observers": self._observers,
            "retry aside": lambda name: retry_aside(self.db, name),
            "limit": self._limit,
            "top": lambda name: cq.rebuild_observer(self.db, SUMS, "top"),
            "audit": self._audit,
            "come and go": self._come_and_go,
        }
        self.kinds = [what for what in self.doing if what in world.plan]

    @property
    def db(self) -> Any:
        """The store as the administrator's process sees it."""
        return self.world.db(self.process)

    def start(self) -> None:
        """Begin; whoever follows an administrator that has died goes on."""
        self.process = self.world.process("administrator")
        self.process.reborn = self.start
        self.world.hub.start(self.process, "change", self._run)

    def _run(self) -> None:
        rng = self.world.hub.rng
        while self.kinds and not self.world.is_calm:
            self.world.hub.wait(rng.expovariate(1 / 2.0))
            what = rng.choice(self.kinds)
            name = rng.choice((TEXTS, SUMS))
            self.world.trace(what, name)
            try:
                self.doing[what](name)
            except cq.CqError as error:
                self.world.trace("refused:", error)
            except Exception as error:
                if error_code(error) is None:
                    raise
            self.db.shape_note = None

    def _rebucket(self, name: str) -> None:
        cq.rebucket(self.db, name, self.world.hub.rng.randint(1, 6))

    def _purge(self, name: str) -> None:
        self.db.shape_note = Shaped(name, purged=True)
        cq.purge(self.db, name)

    def _pause(self, name: str) -> None:
        rng = self.world.hub.rng
        if rng.random() < 0.5:
            cq.pause(self.db, name, seconds=rng.choice((None, 1.0, 5.0)))
        else:
            cq.resume(self.db, name)

    def _observers(self, name: str) -> None:
        """Enable the second observer in a new version, or remove it; the workers get the new application."""
        self.versions += 1
        extra = self.versions if self.world.hub.rng.random() < 0.7 else 0
        self.db.shape_note = Shaped(TEXTS, observers={"anchor": 1} | ({"extra": extra} if extra else {}))
        app(self.world, extra).configure(self.db, TEXTS)
        self.world.workers.replace()

    def _limit(self, name: str) -> None:
        rng = self.world.hub.rng
        cq.limit(
            self.db,
            name,
            seconds=rng.choice((None, 0.5, 3.0)),
            size=rng.choice((None, 100, 10_000)),
            mode=rng.choice(("raise", "admit")),
        )

    def _audit(self, name: str) -> None:
        cq.configure(self.db, SUMS, audit=self.world.hub.rng.random() < 0.7)

    def _come_and_go(self, name: str) -> None:
        workers, rng = self.world.workers, self.world.hub.rng
        if workers.running and rng.random() < 0.5:
            workers.stop(rng.choice(list(workers.running)))
        elif len(workers.running) < 4:
            workers.start()
