"""Adds of many tasks of asyncio in one process: by `cq.aio`, and through an executor; and of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cq import runtime
from cq.cli.bench.measures.crew import TimedWork
from cq.cli.bench.measures.phases import Notify, PhaseResult, Plan, measure
from cq.cli.bench.measures.roles import AdderRole, AddResult
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import CannotMeasure
from cq.cli.bench.systems.workload import BenchWorkload

AsyncAdd = Callable[[Any], Awaitable[None]]
"""Adds what the role draws, and returns after the commit."""


def measure_tasks(
    make: Callable[[], QueueSystem],
    workload: BenchWorkload,
    plan: Plan,
    tasks: int,
    notify: Notify = lambda _: None,
) -> list[PhaseResult]:
    """Measure adds of one update in one process: by the plan's threads, by tasks that use as many, and by `cq.aio`.

    Args:
        make: returns a queue with a new name.
        tasks: number of tasks.

    Raises `CannotMeasure` without the package greenlet, and the errors of `phases.measure`.
    """
    try:
        import cq.aio  # noqa: F401 - in the adding processes, too
    except ImportError as error:
        raise CannotMeasure(str(error)) from error
    single, results = replace(workload, per_transaction=1), []
    for role, callers in ((AdderRole, plan.threads), (ExecutorRole, tasks), (TaskRole, tasks)):
        queue = make()
        caller = getattr(role, "caller", "threads").format(threads=plan.threads)
        notify(f"adds by {caller}")
        system = CalledQueue(**vars(queue), caller=caller, threads=plan.threads)
        results.append(measure(system, single, replace(plan, adders=1, threads=callers), role=role))
    return results


@dataclass(frozen=True)
class CalledQueue(QueueSystem):
    """A queue to which callers of one kind add.

    Args:
        caller: the kind, for the report.
        threads: the threads of an executor.
    """

    caller: str = "threads"
    threads: int = 1

    @property
    def name(self) -> str:
        return self.caller


class TaskRole(AdderRole):
    """Adds in tasks of one event loop, one task in place of each thread, by `cq.aio`."""

    caller: ClassVar[str] = "cq.aio"
    system: CalledQueue

    def prepare(self, stack: ExitStack) -> TimedWork:
        super().prepare(stack)
        self._add_one = self._adder(stack)
        return self.run

    def run(self, begin: float, end: float) -> AddResult:
        return AddResult(asyncio.run(self._all(end)), runtime.monotonic())

    def _adder(self, stack: ExitStack) -> AsyncAdd:
        from cq import aio  # needs an extra

        db, words = aio.AsyncDatabase(self.system.open()), aio.CombineQueue(self.system.queue)
        return lambda updates: db.transact(lambda tr: words.add(tr, updates))

    async def _all(self, end: float) -> int:
        return sum(await asyncio.gather(*(self._task(end) for _ in range(self.threads))))

    async def _task(self, end: float) -> int:
        number = 0
        while runtime.monotonic() < end:
            await self._add_one(self._next())
            number += 1
        return number


class ExecutorRole(TaskRole):
    """Adds in tasks that await the threads of an executor, as applications do without `cq.aio`."""

    caller: ClassVar[str] = "executor of {threads} threads"

    def _adder(self, stack: ExitStack) -> AsyncAdd:
        pool = stack.enter_context(ThreadPoolExecutor(self.system.threads))
        add = self.system.adder(stack)

        async def add_in_thread(updates: Mapping[str, Any]) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, add, updates)

        return add_in_thread
