"""The processes of a benchmark: ready first, then they add for some seconds, or combine, at common times."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count, cycle
from multiprocessing.connection import Connection
from threading import Event
from typing import Any, Final

from cq import runtime
from cq.cli.bench.systems.stored import close_opened
from cq.cli.bench.systems.system import System
from cq.cli.bench.systems.workload import BenchWorkload
from cq.cli.shared.crew import Crew

FIRST_SEED: Final = 1
_FILL: Final = 1_000
_SEEDS: Final = 1_000  # distance of the seeds of two pools of a process; more than there are processes
# The work begins this long after the signal, which must reach all processes first.
_AHEAD_SECONDS: Final = 0.05

TimedWork = Callable[[float, float], Any]
"""Works from a begin to an end, times of the monotonic clock, which all processes of the machine share."""
BenchRole = Callable[[ExitStack], TimedWork]
"""The role of a process: prepares it, which is not timed, and returns its work. The stack closes its resources."""


AddResult = tuple[int, float]
"""Number of added updates, all committed, and the time of the last commit by the machine's monotonic clock."""


class BenchCrew(Crew):
    """Processes with the same kind of role.

    `__enter__`, `run` and `results` raise `ProcessFailed` if a process fails.

    Args:
        what: name of each process, for messages.
        roles: the roles, which are pickled.
    """

    def __init__(self, what: str, roles: Sequence[BenchRole]) -> None:
        super().__init__({f"{what} {number + 1}": role for number, role in enumerate(roles)}, _serve)

    def run(self, seconds: float = 0.0) -> tuple[float, list[Any]]:
        """Run all roles, for `seconds` seconds if they work by time; returns their begin and their results."""
        begin = self.start(seconds)
        return begin, self.results()

    def start(self, seconds: float, begin: float | None = None) -> float:
        """Start all roles at the time `begin`, or soon; returns that time, without waiting for the work."""
        begin = runtime.monotonic() + _AHEAD_SECONDS if begin is None else begin
        for process in self._processes.values():
            with suppress(BrokenPipeError):  # the process has died: `results` reports why
                process.connection.send((begin, begin + seconds))
        return begin

    def results(self) -> list[Any]:
        """The results of all roles; waits for all of them."""
        return [self.receive(name) for name in self._roles]

    def _start_all(self) -> None:
        super()._start_all()
        self.results()  # each process reports when it is ready


def _serve(prepare: BenchRole, stop: Event, parent: Connection) -> None:
    """Run a role in a child process at each signal, until the parent closes its end of the pipe."""
    with suppress(EOFError, ConnectionError), ExitStack() as stack:
        stack.callback(close_opened)
        work = prepare(stack)
        parent.send(None)
        while True:
            begin, end = parent.recv()
            runtime.sleep(max(0.0, begin - runtime.monotonic()))
            parent.send(work(begin, end))


# The work of the processes


@dataclass
class AdderRole:
    """Adds the transactions of a pool to a system, in several threads.

    Args:
        system, workload: the system, and the updates for it.
        threads: number of threads.
        place, of: the number of the process, and how many add: each of them adds other updates.
        rate: updates per second of all processes; None: full speed.
        most: maximum number of transactions of all processes in a run; each run then draws a new pool, which is not
            timed. None: no maximum.
    """

    system: System
    workload: BenchWorkload
    threads: int
    place: int = 0
    of: int = 1
    rate: float | None = None
    most: int | None = None

    def prepare(self, stack: ExitStack) -> TimedWork:
        self._seeds = count(FIRST_SEED + self.place, _SEEDS)
        self._draw()
        self._adders = self.connect(stack)
        self._pool = stack.enter_context(ThreadPoolExecutor(self.threads))
        gc.collect()
        gc.freeze()  # garbage collections must not scan the large pool, which lives as long as the process
        return self.run

    def connect(self, stack: ExitStack) -> list[Any]:
        """The function of each thread that adds the updates of a transaction."""
        return [self.system.adder(stack) for _ in range(self.threads)]

    def run(self, begin: float, end: float) -> AddResult:
        done = list(self._pool.map(lambda thread: self._add(thread, begin, end), range(self.threads)))
        added = sum(done) * self.workload.per_transaction, runtime.monotonic()
        if self.most is not None:
            self._draw()  # after the clock was read: drawing takes longer than adding
        return added

    def _draw(self) -> None:
        pool = self.workload.draw(next(self._seeds))
        # Thread-safe: one call in C, which the interpreter lock protects.
        self._next: Callable[[], Any] = cycle(pool).__next__

    def _add(self, thread: int, begin: float, end: float) -> int:
        """Add in one thread from `begin` to `end`; returns the number of committed transactions."""
        place, of = self.place * self.threads + thread, self.of * self.threads
        add, pause, most = self._adders[thread], 0.0, None
        if self.rate is not None:
            pause = self.workload.per_transaction * of / self.rate
        if self.most is not None:
            most = (self.most + place) // of  # the shares of all threads sum up to `self.most`
        # Threads begin at different times, so that their transactions are evenly spaced.
        number, due = 0, begin + pause * place / of
        while (now := runtime.monotonic()) < end and number != most:
            if due > now:
                runtime.sleep(min(due, end) - now)
                continue
            add(self._next())
            number += 1
            due += pause
        return number


def fill(system: System, workload: BenchWorkload, ranks: range, stack: ExitStack) -> TimedWork:
    """The role of a process that creates the keys of these ranks by one update of each, and returns their number."""
    add = system.adder(stack)

    def run(begin: float, end: float) -> int:
        for start in range(0, len(ranks), _FILL):
            add(workload.transaction(ranks[start : start + _FILL]))
        return len(ranks)

    return run


def drain(system: System, place: int, of: int, stack: ExitStack) -> TimedWork:
    """The role of a process that combines all queued updates, and returns the time of the end."""
    combine = system.drainer(stack, place, of)

    def run(begin: float, end: float) -> float:
        combine()
        return runtime.monotonic()

    return run
