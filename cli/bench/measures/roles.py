"""The work of the processes of a benchmark: adding for some seconds, or combining queued updates."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.cli.bench.measures.crew import BenchCrew, TimedWork
from cq.cli.bench.systems.system import System
from cq.cli.bench.systems.workload import BenchWorkload

FIRST_SEED: Final = 1
_FILL: Final = 1_000
_SEEDS: Final = 1_000  # distance of the seeds of two pools of a process; more than there are processes


class AddResult(NamedTuple):
    """The result of adding.

    Attributes:
        updates: number of updates, all committed.
        ended: time of the last commit, by the machine's monotonic clock.
    """

    updates: int
    ended: float

    @classmethod
    def of_all(cls, results: Iterable[AddResult]) -> AddResult:
        """The result of all processes together."""
        updates, ends = zip(*results, strict=True)
        return cls(sum(updates), max(ends))


@dataclass
class AdderRole:
    """Adds the transactions of a pool to a system, in several threads.

    Args:
        system, workload: the system, and the updates for it.
        threads: number of threads.
        seed: seed of the pool.
        rate: updates per second of the whole process; None: full speed.
        most: maximum number of transactions in a run; each run then draws a new pool, which is not timed. None: no
            maximum.
    """

    system: System
    workload: BenchWorkload
    threads: int
    seed: int
    rate: float | None = None
    most: int | None = None

    def prepare(self, stack: ExitStack) -> TimedWork:
        self._draw()
        self._adders = [self.system.adder(stack) for _ in range(self.threads)]
        self._pool = stack.enter_context(ThreadPoolExecutor(self.threads))
        gc.collect()
        gc.freeze()  # garbage collections must not scan the large pool, which lives as long as the process
        return self.run

    def run(self, begin: float, end: float) -> AddResult:
        done = list(self._pool.map(lambda place: self._add(place, begin, end), range(self.threads)))
        added = AddResult(sum(done) * self.workload.per_transaction, runtime.monotonic())
        if self.most is not None:
            self.seed += _SEEDS
            self._draw()  # after the clock was read: drawing takes longer than adding
        return added

    def _draw(self) -> None:
        pool = self.workload.draw(self.seed)
        # Thread-safe: one call in C, which the interpreter lock protects.
        self._next: Callable[[], Any] = cycle(pool).__next__

    def _add(self, place: int, begin: float, end: float) -> int:
        """Add in one thread from `begin` to `end`; returns the number of committed transactions."""
        add, pause, most = self._adders[place], 0.0, None
        if self.rate is not None:
            pause = self.workload.per_transaction * self.threads / self.rate
        if self.most is not None:
            most = (self.most + place) // self.threads  # the shares of all threads sum up to `self.most`
        # Threads begin at different times, so that their transactions are evenly spaced.
        number, due = 0, begin + pause * place / self.threads
        while (now := runtime.monotonic()) < end and number != most:
            if due > now:
                runtime.sleep(min(due, end) - now)
                continue
            add(self._next())
            number += 1
            due += pause
        return number


def adding(number: int, role: Callable[[int], AdderRole]) -> BenchCrew:
    """Processes that add; `role` returns the role of each, given its seed: each process adds other updates."""
    return BenchCrew("adder", [role(FIRST_SEED + place).prepare for place in range(number)])


def filling(system: System, workload: BenchWorkload, ranks: Iterable[range]) -> BenchCrew:
    """A process for each range of keys, which creates them by one update of each, and returns their number."""
    return BenchCrew("filler", [partial(_fill, system, workload, each) for each in ranks])


def draining(system: System, number: int) -> BenchCrew:
    """Processes that combine all queued updates, and return the time of the end, by the machine's monotonic clock."""
    return BenchCrew("drainer", [partial(_drain, system, place, number) for place in range(number)])


def _fill(system: System, workload: BenchWorkload, ranks: range, stack: ExitStack) -> TimedWork:
    add = system.adder(stack)

    def run(begin: float, end: float) -> int:
        for start in range(0, len(ranks), _FILL):
            add(workload.transaction(ranks[start : start + _FILL]))
        return len(ranks)

    return run


def _drain(system: System, place: int, of: int, stack: ExitStack) -> TimedWork:
    drain: Any = system.drainer(stack, place, of)

    def run(begin: float, end: float) -> float:
        drain()
        return runtime.monotonic()

    return run
