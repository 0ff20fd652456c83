"""Single updates of many callers in one process: threads and tasks of asyncio, `add_now` and an emitter."""

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
from cq.cli.bench.measures.measured_system import (
    Adder,
    AdderRole,
    AddResult,
    MakeAdder,
    Notify,
    Result,
    measure,
)
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import BenchWorkload, CannotMeasure, Plan
from cq.intake.emitter import Emitter

MANY: Final = 32
"""Concurrent threads, and tasks, whose calls wait for their commit."""
VERY_MANY: Final = 4_096
"""Concurrent tasks."""
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
    make: Callable[[], QueueSystem], workload: BenchWorkload, plan: Plan, notify: Notify, kinds: list[Callers]
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


def single_adds() -> list[Callers]:
    """Threads with a transaction for each update, threads and tasks that call `add_now`, and one with an emitter.

    Raises `CannotMeasure` without greenlet.
    """
    _require_aio()
    return [
        Callers("threads, a transaction each", Adder, MANY),
        Callers("add_now, threads", NowAdder, MANY),
        Callers("add_now, tasks", partial(TaskAdder, adding=_now), MANY),
        Callers("add_now, tasks", partial(TaskAdder, adding=_now), VERY_MANY),
        Callers("emitter", EmitterAdder, 1, _LOOP),
    ]


def awaiting(threads: int, tasks: int) -> list[Callers]:
    """Threads, tasks that use as many threads, and tasks with `cq.aio`; `CannotMeasure` without greenlet."""
    _require_aio()
    executor = partial(TaskAdder, adding=partial(_by_executor, threads=threads))
    return [
        Callers("threads", Adder, threads),
        Callers(f"executor of {threads} threads", executor, tasks),
        Callers("cq.aio", partial(TaskAdder, adding=_by_aio), tasks),
    ]


def _require_aio() -> None:
    try:
        import cq.aio  # noqa: F401 - in the adding processes, too
    except ImportError as error:
        raise CannotMeasure(str(error)) from error


class NowAdder(Adder):
    """Adds by `add_now`, whose calls share transactions."""

    def __init__(self, role: AdderRole, stack: ExitStack) -> None:
        db, queue = role.system.open(), cq.CombineQueue[str, Any](role.system.queue)
        super().__init__(role, stack, partial(queue.add_now, db))


class EmitterAdder(Adder):
    """Adds through the emitter of its process, and counts updates after they are committed."""

    def __init__(self, role: AdderRole, stack: ExitStack) -> None:
        self._emitter = stack.enter_context(Emitter(cq.CombineQueue(role.system.queue), role.system.open()))
        super().__init__(role, stack, self._emit)

    def _emit(self, updates: Mapping[str, Any]) -> None:
        for key, update in updates.items():
            self._emitter.emit(key, update)

    def run(self, begin: float, end: float) -> AddResult:
        updates, _ = super().run(begin, end)
        # Calls return before the commit: the time until the commit counts, too.
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
        super().__init__(role, stack, adding(role.system, stack))

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


def _now(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    from cq import aio  # needs an extra

    return partial(aio.CombineQueue(system.queue).add_now, aio.AsyncDatabase(system.open()))


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
