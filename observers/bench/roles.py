"""What the processes of a benchmark do: add for some seconds, or combine what waits."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final, NamedTuple

from cq import machine
from cq.observers.bench.stored import close_opened
from cq.observers.bench.system import System
from cq.observers.bench.workload import Workload

_FILL: Final = 1_000
_SEEDS: Final = 1_000  # from one pool to the next of the same process


class AddResult(NamedTuple):
    """What a process has added.

    Attributes:
        updates: so many, all of them committed.
        transactions: in so many transactions.
        ended: when the last one had committed, by the machine's monotonic clock.
    """

    updates: int
    transactions: int
    ended: float


class AdderRole:
    """Adds to a system, in so many threads, whatever of its pool comes next.

    Args:
        system, workload: what is added to, and what.
        threads: callers at once.
        seed: which pool.
        rate: updates per second of the whole process; None for as many as possible.
        most: so many transactions and no more; None for as many as there is time for.
        is_fresh: whether the pool is drawn anew for each run, which is not timed.
    """

    def __init__(
        self,
        system: System,
        workload: Workload,
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
        gc.freeze()  # the pool is large, and lives as long as the process

    def run(self, begin: float, end: float) -> AddResult:
        done = list(self._pool.map(lambda place: self._add(place, begin, end), range(self._threads)))
        transactions = sum(done)
        added = AddResult(transactions * self._workload.per_transaction, transactions, machine.monotonic())
        if self._is_fresh:
            self._seed += _SEEDS
            self._draw()
        return added

    def _draw(self) -> None:
        pool = self._workload.draw(self._seed)
        self._next = cycle(pool).__next__  # threads may share it: it is one step of the interpreter

    def _add(self, place: int, begin: float, end: float) -> int:
        """One thread; returns how many transactions have committed."""
        adder, pause, most = self._adders[place], 0.0, None
        if self._rate is not None:
            pause = self._workload.per_transaction * self._threads / self._rate
        if self._most is not None:
            most = (self._most + place) // self._threads  # of all threads together, just as many
        number, due = 0, begin + pause * place / self._threads
        while (now := machine.monotonic()) < end and number != most:
            if due > now:
                machine.sleep(min(due, end) - now)
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
    """Adds one update of each of a range of keys, so that they are there."""

    def __init__(self, system: System, workload: Workload, ranks: range) -> None:
        self._system, self._workload, self._ranks = system, workload, ranks

    def prepare(self) -> None:
        self._adder = self._system.adder()

    def run(self, begin: float, end: float) -> int:
        """Returns how many updates these were."""
        for start in range(0, len(self._ranks), _FILL):
            self._adder.add(self._workload.transaction(self._ranks[start : start + _FILL]))
        return len(self._ranks)

    def close(self) -> None:
        self._adder.close()
        close_opened()


class DrainerRole:
    """Combines what waits in a system, as one of several processes."""

    def __init__(self, system: System, place: int, of: int) -> None:
        self._system, self._place, self._of = system, place, of

    def prepare(self) -> None:
        self._drainer: Any = self._system.drainer(self._place, self._of)

    def run(self, begin: float, end: float) -> float:
        """Returns when it was done, by the machine's monotonic clock."""
        self._drainer.drain()
        return machine.monotonic()

    def close(self) -> None:
        self._drainer.close()
        close_opened()
