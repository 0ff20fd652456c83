"""The work of the processes of a benchmark: adding for some seconds, or combining queued updates."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.cli.bench.systems.stored import close_opened
from cq.cli.bench.systems.system import System
from cq.cli.bench.systems.workload import BenchWorkload

_FILL: Final = 1_000
_SEEDS: Final = 1_000  # distance of the seeds of two pools of a process; more than there are processes


class AddResult(NamedTuple):
    """The result of adding in one process.

    Attributes:
        updates: number of updates, all committed.
        transactions: number of their transactions.
        ended: time of the last commit, by the machine's monotonic clock.
    """

    updates: int
    transactions: int
    ended: float


class AdderRole:
    """Adds the transactions of a pool to a system, in several threads.

    Args:
        system, workload: the system, and the updates for it.
        threads: number of threads.
        seed: seed of the pool.
        rate: updates per second of the whole process; None: full speed.
        most: maximum number of transactions; None: no maximum.
        is_fresh: whether each run draws a new pool, which is not timed.
    """

    def __init__(
        self,
        system: System,
        workload: BenchWorkload,
        threads: int,
        seed: int,
        *,
        rate: float | None = None,
        most: int | None = None,
        is_fresh: bool = False,
    ) -> None:
        self._system, self._workload = system, workload
        self._threads, self._seed = threads, seed
        self._rate, self._most, self._is_fresh = rate, most, is_fresh

    def prepare(self) -> None:
        self._draw()
        self._adders = [self._system.adder() for _ in range(self._threads)]
        self._pool = ThreadPoolExecutor(self._threads)
        gc.collect()
        gc.freeze()  # garbage collections must not scan the large pool, which lives as long as the process

    def run(self, begin: float, end: float) -> AddResult:
        done = list(self._pool.map(lambda place: self._add(place, begin, end), range(self._threads)))
        transactions = sum(done)
        added = AddResult(transactions * self._workload.per_transaction, transactions, runtime.monotonic())
        if self._is_fresh:
            self._seed += _SEEDS
            self._draw()
        return added

    def _draw(self) -> None:
        pool = self._workload.draw(self._seed)
        self._next = cycle(pool).__next__  # thread-safe: one call in C, which the interpreter lock protects

    def _add(self, place: int, begin: float, end: float) -> int:
        """Add in one thread from `begin` to `end`; returns the number of committed transactions."""
        adder, pause, most = self._adders[place], 0.0, None
        if self._rate is not None:
            pause = self._workload.per_transaction * self._threads / self._rate
        if self._most is not None:
            most = (self._most + place) // self._threads  # the shares of all threads sum up to `self._most`
        # Threads begin at different times, so that their transactions are evenly spaced.
        number, due = 0, begin + pause * place / self._threads
        while (now := runtime.monotonic()) < end and number != most:
            if due > now:
                runtime.sleep(min(due, end) - now)
                continue
            adder.add(self._next())
            number += 1
            due += pause
        return number

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(close_opened)
            for adder in self._adders:
                stack.callback(adder.close)
            stack.callback(self._pool.shutdown)


class FillerRole:
    """Creates a range of keys, by one update of each."""

    def __init__(self, system: System, workload: BenchWorkload, ranks: range) -> None:
        self._system, self._workload, self._ranks = system, workload, ranks

    def prepare(self) -> None:
        self._adder = self._system.adder()

    def run(self, begin: float, end: float) -> int:
        """Add the updates; returns their number."""
        for start in range(0, len(self._ranks), _FILL):
            self._adder.add(self._workload.transaction(self._ranks[start : start + _FILL]))
        return len(self._ranks)

    def close(self) -> None:
        self._adder.close()
        close_opened()


class DrainerRole:
    """Combines the queued updates of a system, as one of several processes."""

    def __init__(self, system: System, place: int, of: int) -> None:
        self._system, self._place, self._of = system, place, of

    def prepare(self) -> None:
        self._drainer: Any = self._system.drainer(self._place, self._of)

    def run(self, begin: float, end: float) -> float:
        """Drain the system; returns the time of the end, by the machine's monotonic clock."""
        self._drainer.drain()
        return runtime.monotonic()

    def close(self) -> None:
        self._drainer.close()
        close_opened()
