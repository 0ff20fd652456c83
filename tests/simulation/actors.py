"""The processes that add to the queues, and the processes of the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import cq
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.store.transact import transact
from tests.simulation.application import BAD_KEY, OTHERS, STORED, TEXTS, app
from tests.simulation.hub import Process
from tests.simulation.model import Added

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import World

LATE_TRY_SECONDS: Final = 1.5
"""Little more than short-lived operation ids are remembered."""


class Adders:
    """Processes that add to the queues, each transaction something that is added nowhere else.

    Attributes:
        operations: those begun with an id that are not known to be committed; whoever comes tries them again.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.operations: dict[str | bytes, Added] = {}
        self.rng = world.hub.rng
        self.keys = [f"k{number}" for number in range(world.rng.randint(1, 6))]
        self.most = world.rng.choice((1, 2, 5, 20))
        self.pause = world.rng.choice((0.005, 0.05, 0.5))
        self.slow = world.rng.choice((0.0, 0.05, 0.3))
        if "large" in world.plan:
            self.keys += [f"large {number} ".ljust(world.rng.randint(500, 8_000), "x") for number in range(2)]
        self._tokens = 0
        self._done: list[tuple[float, Added]] = []

    def start(self) -> None:
        """Another adder."""
        self.world.start_process("adder", "add", self._run)

    def _run(self, process: Process) -> None:
        while not self.world.is_calm:
            self.world.hub.wait(self.rng.expovariate(1 / self.pause))
            self.add(process, self._tried_late() or self._next())

    def _next(self) -> Added:
        again = list(self.operations.values())
        return self.rng.choice(again) if again and self.rng.random() < 0.3 else self._drawn()

    def _tried_late(self) -> Added | None:
        """What was committed a while ago and is tried again now, as by a client that learns nothing for long."""
        if not self._done or self._done[0][0] > self.world.hub.clock:
            return None
        return self._done.pop(0)[1]

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

        error = self.world.attempt(
            lambda: transact(self.world.db(process), run, write_only="write only" in self.world.plan),
            cq.QueueFull,
            cq.errors.QueueNotConfigured,
        )
        if isinstance(error, cq.CqError):
            self.world.hub.wait(0.5)
        elif error is None:
            self.operations.pop(note.once or "", None)
            if note.once and "late tries" in self.world.plan and self.rng.random() < 0.7:
                self._done.append((self.world.hub.clock + LATE_TRY_SECONDS, note))

    def _drawn(self, queue: str | None = None) -> Added:
        rng, plan = self.rng, self.world.plan
        name = queue or rng.choice([name for name in self.world.models if name != STORED])
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
            is_large = "large" in self.world.plan and self.rng.random() < 0.05
            return "x" * self.rng.randrange(30_000) * is_large + f"{self._tokens}."
        if queue == OTHERS:
            self._tokens += 1
            return self.world.other.update(self._tokens)
        opposite = "opposite" in self.world.plan and self.rng.random() < 0.5
        return self.rng.randint(1, 3) * (-1 if opposite else 1)


class WorkerPool:
    """The workers' processes, and who starts them.

    Args:
        world: whose they are.
        make: makes a process's worker, of this identity.

    Attributes:
        running: those that run.
        made: all that there were.
    """

    def __init__(self, world: Scenario, make: Callable[[Process, str], Worker]) -> None:
        self._world, self._make = world, make
        self.running: dict[Process, Worker] = {}
        self.made: list[Worker] = []

    def start(self, identity: str | None = None) -> Process:
        """Start one, with the code as it is now."""
        process = self._world.process("worker")
        worker = self._make(process, identity or process.name)
        self.running[process] = worker
        self.made.append(worker)
        process.reborn = lambda: self._again(identity or process.name)
        process.on_death.append(lambda: self.running.pop(process, None))

        def run() -> None:
            self._work(worker)
            self.running.pop(process, None)
            self._world.trace("ends")

        self._world.hub.start(process, "run", run)
        return process

    def _work(self, worker: Worker) -> None:
        worker.run()

    def stop(self, process: Process) -> None:
        """Stop one in good order; no other one takes its place."""
        process.reborn = lambda: None
        worker = self.running.pop(process, None)
        if worker is not None:
            worker.stop()

    def replace(self, least: int = 0) -> None:
        """Stop all, and start as many with the code as it is now, or this number at least."""
        for process in list(self.running):
            self.stop(process)
            self.start()
        while len(self.running) < least:
            self.start()

    def come_and_go(self, most: int = 4) -> None:
        """Stop one of them in good order, or start another one if there are fewer than this number."""
        rng = self._world.hub.rng
        if self.running and rng.random() < 0.5:
            self.stop(rng.choice(list(self.running)))
        elif len(self.running) < most:
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
        new = partial(world.worker, limits=limits, concurrency=concurrency, beat=beat_seconds)

        def make(process: Process, identity: str) -> Worker:
            return new(process, identity, app(world, world.extra))

        super().__init__(world, make)
        self.make = make


class Drains(WorkerPool):
    """Workers that end when all is combined, beside the others: `cq worker --drain`."""

    def __init__(self, world: World) -> None:
        super().__init__(world, world.workers.make)

    def _work(self, worker: Worker) -> None:
        self._world.attempt(worker.drain, cq.CqError)
