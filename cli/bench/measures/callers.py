"""Single updates of many callers in one process: threads and tasks of asyncio, with a transaction or an emitter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.bench.measures.crew import Adder, AdderRole, AddResult, MakeAdder
from cq.cli.bench.measures.measured_system import Notify, Result, measure
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import CannotMeasure
from cq.cli.bench.systems.workload import BenchWorkload, Plan
from cq.intake.emitter import Emitter

MANY: Final = 32
"""Concurrent callers of adds and emitters, if a call waits for its commit."""
_LOOP: Final = 1_000
"""Calls between two reads of the clock, if a call takes only one or two microseconds."""

AsyncAdd = Callable[[Mapping[str, Any]], Awaitable[object]]
"""Adds updates, and returns after the commit."""


class Callers(NamedTuple):
    """Callers of one kind: its name, their adder, their number, and calls between two reads of the clock."""

    name: str
    make: MakeAdder
    number: int
    calls: int = 1


def measure_callers(
    make: Callable[[], QueueSystem],
    workload: BenchWorkload,
    plan: Plan,
    notify: Notify,
    kinds: list[Callers],
) -> list[Result]:
    """Measure single updates by callers of each kind in one process: the rate of updates that it committed.

    Args:
        make: returns a queue with a new name.

    Raises the errors of `measure`.
    """
    results = []
    for kind in kinds:
        found = measure(
            replace(make(), name=kind.name),
            replace(workload, per_transaction=kind.calls),
            replace(plan, adders=1, threads=kind.number),
            notify,
            kind.make,
        )
        result = {"system": kind.name, "store": found["store"], "callers": kind.number}
        results.append(
            {**result, "committed": found["add"], "committed_repetitions": found["add_repetitions"]}
        )
    return results


def emitting() -> list[Callers]:
    """Callers of `add`, of emitters in `durable` mode from threads and tasks, and of one in `fast` mode."""
    return [
        Callers("cq", Adder, MANY),
        Callers("emitter durable, threads", partial(EmitterAdder, mode="durable"), MANY),
        Callers("emitter durable, tasks", partial(TaskAdder, adding=_by_emitter), MANY),
        Callers("emitter fast", partial(EmitterAdder, mode="fast"), 1, _LOOP),
    ]


def awaiting(threads: int, tasks: int) -> list[Callers]:
    """Threads, tasks that use as many threads, and tasks with `cq.aio`; `CannotMeasure` without greenlet."""
    try:
        import cq.aio  # noqa: F401 - in the adding processes, too
    except ImportError as error:
        raise CannotMeasure(str(error)) from error
    executor = partial(TaskAdder, adding=partial(_by_executor, threads=threads))
    return [
        Callers("threads", Adder, threads),
        Callers(f"executor of {threads} threads", executor, tasks),
        Callers("cq.aio", partial(TaskAdder, adding=_by_aio), tasks),
    ]


class EmitterAdder(Adder):
    """Adds through the emitter of its process, and counts updates after they are committed.

    Args:
        mode: the mode of the emitter.
    """

    def __init__(self, role: AdderRole, stack: ExitStack, *, mode: str) -> None:
        self._emitter = _emitter(role.system, stack, mode)
        super().__init__(
            role, stack, [self._emit] * role.threads
        )  # emitters merge the increments of all threads

    def _emit(self, updates: Mapping[str, Any]) -> None:
        for key, update in updates.items():
            self._emitter.emit(key, update)

    def run(self, begin: float, end: float) -> AddResult:
        updates, _ = super().run(begin, end)
        # In `fast` mode emits return before their commit: the time until the commit counts, too.
        self._emitter.flush()
        return updates, runtime.monotonic()


class TaskAdder(Adder):
    """Adds in tasks of one event loop, one task in place of each thread.

    Args:
        adding: returns the function that adds the updates of a transaction.
    """

    def __init__(
        self, role: AdderRole, stack: ExitStack, *, adding: Callable[[QueueSystem, ExitStack], AsyncAdd]
    ) -> None:
        super().__init__(role, stack, [adding(role.system, stack)] * role.threads)

    def run(self, begin: float, end: float) -> AddResult:
        return asyncio.run(self._all(end)), runtime.monotonic()

    async def _all(self, end: float) -> int:
        return sum(await asyncio.gather(*(self._task(add, end) for add in self._adders)))

    async def _task(self, add: AsyncAdd, end: float) -> int:
        number = 0
        while runtime.monotonic() < end:
            await add(self._next())
            number += 1
        return number


def _emitter(system: QueueSystem, stack: ExitStack, mode: str) -> Emitter:
    return stack.enter_context(Emitter(cq.CombineQueue(system.queue), system.open(), mode=mode))


def _by_emitter(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    emitter = _emitter(system, stack, "durable")
    return lambda updates: emitter.emit_async(*next(iter(updates.items())))


def _by_aio(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    from cq import aio  # needs an extra

    db, queue = aio.AsyncDatabase(system.open()), aio.CombineQueue(system.queue)
    return lambda updates: db.transact(lambda tr: queue.add(tr, updates))


def _by_executor(system: QueueSystem, stack: ExitStack, threads: int) -> AsyncAdd:
    """The threads of an executor, as applications use them without `cq.aio`."""
    pool = stack.enter_context(ThreadPoolExecutor(threads))
    add = system.adder(stack)

    async def add_in_thread(updates: Mapping[str, Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(pool, add, updates)

    return add_in_thread
