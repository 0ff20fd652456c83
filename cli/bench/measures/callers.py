"""Single updates of many callers in one process: threads and tasks of asyncio, `add_now` and an emitter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.bench.measures.measured_system import (
    Adder,
    AddResult,
    MakeAdder,
    Notify,
    Result,
    TimedWork,
    measure,
)
from cq.cli.bench.systems.backends import require
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import BenchWorkload, Plan
from cq.intake.emitter import Emitter

MANY: Final = 32
"""Concurrent threads, and tasks, whose calls wait for their commit."""
VERY_MANY: Final = 4_096
"""Concurrent tasks."""
_THREADS: Final = 8
_TASKS: Final = 64
"""Concurrent tasks with a transaction for each update."""
_LOOP: Final = 1_000
"""Calls between two reads of the clock, for an emitter: a call takes only one or two microseconds."""

AsyncAdd = Callable[[Mapping[str, Any]], Awaitable[object]]
"""Adds updates, and returns after the commit."""


class Callers(NamedTuple):
    """Callers of one kind: its name, their adder, their number, and calls between two reads of the clock."""

    name: str
    make: MakeAdder
    number: int
    calls: int = 1


def measure_callers(
    make: Callable[[], QueueSystem], workload: BenchWorkload, plan: Plan, notify: Notify
) -> list[Result]:
    """Measure single updates by callers of each kind in one process: the rate of updates that it committed.

    Args:
        make: returns a queue with a new name.

    Raises the errors of `measure`, and `Unavailable` without greenlet.
    """
    require("greenlet", "aio")
    results = []
    for kind in _KINDS:
        found = measure(
            replace(make(), name=kind.name),
            replace(workload, per_transaction=kind.calls),
            replace(plan, adders=1, threads=kind.number),
            notify,
            kind.make,
        )
        committed = {"committed": found["add"], "committed_repetitions": found["add_repetitions"]}
        results.append({"system": kind.name, "store": found["store"], "callers": kind.number, **committed})
    return results


class NowAdder(Adder):
    """Adds by `add_now`, whose calls share transactions."""

    def prepare(self, stack: ExitStack) -> TimedWork:
        db, queue = self.system.open(), cq.CombineQueue[str, Any](self.system.queue)
        return self.adding([partial(queue.add_now, db)] * self.threads, stack)


class EmitterAdder(Adder):
    """Adds through the emitter of its process, and counts updates after they are committed."""

    def prepare(self, stack: ExitStack) -> TimedWork:
        emitter = stack.enter_context(Emitter(cq.CombineQueue(self.system.queue), self.system.open()))

        def emit(updates: Mapping[str, Any]) -> None:
            for key, update in updates.items():
                emitter.emit(key, update)

        work = self.adding([emit] * self.threads, stack)

        def run(begin: float, end: float) -> AddResult:
            added: AddResult = work(begin, end)
            # Calls return before the commit: the time until the commit counts, too.
            emitter.flush()
            return added._replace(end=runtime.monotonic())

        return run


@dataclass(frozen=True, kw_only=True)
class TaskAdder(Adder):
    """Adds in tasks of one event loop, one task in place of each thread.

    Args:
        by: returns the function that adds the updates of a transaction.
    """

    by: Callable[[QueueSystem, ExitStack], AsyncAdd]

    def prepare(self, stack: ExitStack) -> TimedWork:
        add, following = self.by(self.system, stack), next(self.pools())

        async def task(begin: float, end: float, place: int) -> list[float]:
            seconds, (due, pause) = list[float](), self.times(begin, place)
            while (now := runtime.monotonic()) < end or (self.rate is None and not seconds):
                if due > now:
                    await asyncio.sleep(min(due, end) - now)
                    continue
                await add(following())
                seconds.append(runtime.monotonic() - now)
                due += pause
            return seconds

        async def tasks(begin: float, end: float) -> AddResult:
            done = await asyncio.gather(*(task(begin, end, place) for place in range(self.threads)))
            seconds = list(chain.from_iterable(done))
            return AddResult(len(seconds), runtime.monotonic(), seconds)

        return lambda begin, end: asyncio.run(tasks(begin, end))


def _now(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    from cq import aio  # needs an extra

    return partial(aio.CombineQueue(system.queue).add_now, aio.AsyncDatabase(system.open()))


def _by_aio(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    from cq import aio  # needs an extra

    db, queue = aio.AsyncDatabase(system.open()), aio.CombineQueue(system.queue)
    return lambda updates: db.transact(lambda tr: queue.add(tr, updates))


def _by_executor(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    """The threads of an executor, as applications use them without `cq.aio`."""
    pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
    add = system.adder(stack)

    async def add_in_thread(updates: Mapping[str, Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(pool, add, updates)

    return add_in_thread


_KINDS: Final = (
    Callers("threads, a transaction each", Adder, MANY),
    Callers("add_now, threads", NowAdder, MANY),
    Callers("add_now, tasks", partial(TaskAdder, by=_now), MANY),
    Callers("add_now, tasks", partial(TaskAdder, by=_now), VERY_MANY),
    Callers("emitter", EmitterAdder, 1, _LOOP),
    Callers("threads, a transaction each", Adder, _THREADS),
    Callers(f"an executor of {_THREADS} threads", partial(TaskAdder, by=_by_executor), _TASKS),
    Callers("cq.aio", partial(TaskAdder, by=_by_aio), _TASKS),
)
