"""Single increments in one process: one transaction each, and through emitters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.cli.bench.measures.phases import Notify, PhaseResult, Plan, measure
from cq.cli.bench.measures.roles import AdderRole, AddResult
from cq.cli.bench.measures.tasks import AsyncAdd, TaskRole
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import Add
from cq.cli.bench.systems.workload import BenchWorkload
from cq.intake.emitter import Emitter

CALLERS: Final = 32
"""Concurrent callers, threads or asyncio tasks, if a call waits for its commit."""
_LOOP: Final = 1_000
"""Calls between two reads of the clock, if a call takes only one or two microseconds."""


def measure_emitters(
    make: Callable[[], QueueSystem], workload: BenchWorkload, plan: Plan, notify: Notify = lambda _: None
) -> list[PhaseResult]:
    """Measure single adds, emitters in `durable` mode with many callers, and one in `fast` mode with one caller.

    The figure `add` of a result is the rate of increments that one process committed. The callers of `durable` mode are
    threads, and then asyncio tasks.

    Args:
        make: returns a queue with a new name.

    Raises the errors of `phases.measure`.
    """
    single, loop = replace(workload, per_transaction=1), replace(workload, per_transaction=_LOOP)
    many, one = replace(plan, adders=1, threads=CALLERS), replace(plan, adders=1, threads=1)
    notify("single adds")
    results = [measure(make(), single, many)]
    for mode, words, calls, role in (
        ("durable", single, many, EmitterRole),
        ("durable", single, many, AsyncEmitterRole),
        ("fast", loop, one, EmitterRole),
    ):
        notify(f"emitter, {mode}")
        queue = make()
        system = EmitterQueue(**vars(queue), mode=mode, caller=role.caller)
        results.append(measure(system, words, calls, role=role))
    return results


@dataclass(frozen=True)
class EmitterQueue(QueueSystem):
    """A queue whose updates are added through the emitter of the process.

    Args:
        mode: the mode of the emitter.
        caller: the kind of its callers, "thread" or "task".
    """

    mode: str = "durable"
    caller: str = "thread"

    @property
    def name(self) -> str:
        return f"emitter {self.mode}" + (f", {self.caller}s" if self.mode == "durable" else "")

    def adder(self, stack: ExitStack) -> Add:
        # The threads of a process share its emitter: emitters merge the increments of one process.
        if self.queue not in _emitters:
            emitter = Emitter(cq.CombineQueue(self.queue), self.open(), mode=self.mode)
            _emitters[self.queue] = stack.enter_context(emitter)
        emit = _emitters[self.queue].emit

        def add(updates: Mapping[str, Any]) -> None:
            for key, update in updates.items():
                emit(key, update)

        return add


_emitters: Final[dict[str, Emitter]] = {}
"""{queue: the emitter of this process}."""


class EmitterRole(AdderRole):
    """Adds through an emitter, and counts its increments after they are committed."""

    caller: ClassVar[str] = "thread"

    def run(self, begin: float, end: float) -> AddResult:
        added = super().run(begin, end)
        # In `fast` mode emits return before their commit: the time until the commit counts, too.
        for emitter in _emitters.values():
            emitter.flush()
        return added._replace(ended=runtime.monotonic())


class AsyncEmitterRole(TaskRole):
    """Adds through an emitter in asyncio tasks of one event loop, one task in place of each thread."""

    caller: ClassVar[str] = "task"

    def _draw(self) -> None:
        pool = self.workload.draw(self.seed)
        self._next = cycle([update for updates in pool for update in updates.items()]).__next__

    def _adder(self, stack: ExitStack) -> AsyncAdd:
        (emitter,) = _emitters.values()
        return lambda increment: emitter.emit_async(*increment)
