"""What the processes of a benchmark do: add for some seconds, or combine what waits."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import Any, NamedTuple

from cq import machine
from cq.observers.bench.stored import close_opened
from cq.observers.bench.system import Adder, System
from cq.observers.bench.workload import Workload


class Added(NamedTuple):
    """What a process has added.

    Attributes:
        updates: so many, all of them committed.
        transactions: in so many transactions.
        ended: when the last one had committed, by the machine's monotonic clock.
    """

    updates: int
    transactions: int
    ended: float


class Adding:
    """Adds to a system, in so many threads, whatever of its pool comes next.

    Args:
        system, workload: what is added to, and what.
        threads: callers at once.
        seed: which pool.
        rate: updates per second of the whole process; None for as many as possible.
    """

    def __init__(
        self, system: System, workload: Workload, threads: int, seed: int, rate: float | None = None
    ) -> None:
        self._system, self._workload = system, workload
        self._threads, self._seed, self._rate = threads, seed, rate

    def prepare(self) -> None:
        pool = self._workload.draw(self._seed)
        self._next = cycle(pool).__next__  # threads may share it: it is one step of the interpreter
        self._adders = [self._system.adder() for _ in range(self._threads)]
        self._pool = ThreadPoolExecutor(self._threads)
        gc.collect()
        gc.freeze()  # the pool is large, and lives as long as the process

    def run(self, begin: float, end: float) -> Added:
        done = list(self._pool.map(lambda adder: self._add(adder, begin, end), self._adders))
        transactions = sum(done)
        return Added(transactions * self._workload.per_transaction, transactions, machine.monotonic())

    def _add(self, adder: Adder, begin: float, end: float) -> int:
        """One thread; returns how many transactions have committed."""
        pause = 0.0
        if self._rate is not None:
            pause = self._workload.per_transaction * self._threads / self._rate
        number, due = 0, begin
        while (now := machine.monotonic()) < end:
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


class Draining:
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
