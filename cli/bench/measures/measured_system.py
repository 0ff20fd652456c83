"""Measurements of a system by processes that add and combine, and their figures; the first one: adding and draining.

The processes are ready first, then they add for some seconds, or combine, at common times.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, cycle
from math import ceil
from multiprocessing.connection import Connection
from statistics import median
from threading import Event
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cq import runtime
from cq.cli.bench.systems.stored import close_opened
from cq.cli.bench.systems.system import Add, BenchWorkload, Plan, System, WrongSum
from cq.cli.shared.output import quantity
from cq.cli.shared.processes import Crew

FIRST_SEED: Final = 1
_FILL: Final = 1_000
_SEEDS: Final = 1_000  # distance of the seeds of two pools of a process; more than there are processes
# The work begins this long after the signal, which must reach all processes first.
_AHEAD_SECONDS: Final = 0.05

TimedWork = Callable[[float, float], Any]
"""Works from a begin to an end, times of the monotonic clock, which all processes of the machine share."""
BenchRole = Callable[[ExitStack], TimedWork]
"""The role of a process: prepares it, which is not timed, and returns its work. The stack closes its resources."""


class AddResult(NamedTuple):
    """Number of added updates, all committed, the time of the last commit, and the seconds that each call took."""

    updates: int
    end: float
    seconds: Sequence[float]


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


@dataclass(frozen=True)
class Adder:
    """The role of a process that adds the transactions of a pool to a system, in several threads.

    Args:
        system, workload: the system, and the updates for it.
        threads: number of threads.
        place, of: the number of the process, and how many add: each of them adds other updates.
        rate: updates per second of all processes; None: full speed.
        most: maximum number of transactions of all processes in a run; each run then draws a new pool, which is not
            timed. None: no maximum.
    """

    system: Any
    workload: BenchWorkload
    threads: int
    place: int = 0
    of: int = 1
    rate: float | None = None
    most: int | None = None

    def prepare(self, stack: ExitStack) -> TimedWork:
        """Draw the updates, and connect; the work returns an `AddResult`."""
        return self.adding([self.system.adder(stack) for _ in range(self.threads)], stack)

    def adding(self, adders: Sequence[Add], stack: ExitStack) -> TimedWork:
        """Draw the updates; the work adds them by these functions, one for each thread."""
        pools = self.pools()
        following, pool = next(pools), stack.enter_context(ThreadPoolExecutor(self.threads))

        def run(begin: float, end: float) -> AddResult:
            nonlocal following
            add = partial(self._add, following, begin, end)
            seconds = list(chain.from_iterable(pool.map(add, adders, range(self.threads))))
            added = AddResult(len(seconds) * self.workload.per_transaction, runtime.monotonic(), seconds)
            if self.most is not None:
                following = next(pools)  # after the clock was read: drawing takes longer than adding
            return added

        return run

    def pools(self) -> Iterator[Callable[[], Any]]:
        """Functions that return the next transaction of a pool, for all threads."""
        for seed in count(FIRST_SEED + self.place, _SEEDS):
            drawn = cycle(self.workload.draw(seed))
            gc.collect()
            gc.freeze()  # garbage collections must not scan the large pool, which lives as long as the process
            yield drawn.__next__  # thread-safe: one call in C, which the interpreter lock protects

    def _add(
        self, following: Callable[[], Any], begin: float, end: float, add: Add, thread: int
    ) -> list[float]:
        """Add in one thread from `begin` to `end`; returns the seconds of each committed transaction."""
        place, of = self.place * self.threads + thread, self.of * self.threads
        most = None
        if self.most is not None:
            most = (self.most + place) // of  # the shares of all threads sum up to `most`
        seconds, (due, pause) = list[float](), self.times(begin, thread)
        now = runtime.monotonic()
        # At full speed at least once: on a busy machine a short time may be over before it begins.
        while (now < end or (self.rate is None and not seconds)) and len(seconds) != most:
            if due > now:
                runtime.sleep(min(due, end) - now)
                now = runtime.monotonic()
                continue
            add(following())
            begun, now = now, runtime.monotonic()
            seconds.append(now - begun)
            due += pause
        return seconds

    def times(self, begin: float, thread: int) -> tuple[float, float]:
        """When a thread adds its first transaction, and the time between two of its transactions.

        Threads begin at different times, so that their transactions are evenly spaced.
        """
        place, of = self.place * self.threads + thread, self.of * self.threads
        pause = 0.0 if self.rate is None else self.workload.per_transaction * of / self.rate
        return begin + pause * place / of, pause


MakeAdder = Callable[..., Adder]


def fill(system: System, workload: BenchWorkload, ranks: range, stack: ExitStack) -> TimedWork:
    """The role of a process that creates the keys of these ranks by one update of each, and returns their number."""
    add = system.adder(stack)

    def run(begin: float, end: float) -> int:
        for start in range(0, len(ranks), _FILL):
            add(workload.transaction(ranks[start : start + _FILL]))
        return len(ranks)

    return run


def drain(system: System, place: int, stack: ExitStack) -> TimedWork:
    """The role of a process that combines all queued updates, and returns the time of the end."""
    combine = system.drainer(stack, place)

    def run(begin: float, end: float) -> float:
        combine()
        return runtime.monotonic()

    return run


Result = dict[str, Any]
"""A result as in the JSON of the report."""
Figures = Mapping[str, float | None]
"""The figures of a repetition; None: not measured."""


def medians(rounds: Sequence[Figures]) -> Result:
    """The medians of the figures of several repetitions, then their values in each of them."""
    values = {
        name: None if figure is None else [round(each[name] or 0.0, 3) for each in rounds]
        for name, figure in rounds[0].items()
    }
    return {
        **{name: each and round(median(each), 3) for name, each in values.items()},
        **{f"{name}_repetitions": each for name, each in values.items()},
    }


def spread(values: Sequence[float]) -> float:
    """The difference of the highest and the lowest value, as a share of the median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def harmonic(add: float, drain: float) -> float:
    """The updates per second of a system that spends its time on adding and draining in turn."""
    return 1 / (1 / add + 1 / drain)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ascending values such that at least `share` of all values are at or below it."""
    return ordered[max(1, ceil(share * len(ordered))) - 1]


def times_ms(seconds: Iterable[float]) -> dict[str, float]:
    """The median, the 99th percentile and the maximum of these times, in milliseconds."""
    shares, ordered = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}, sorted(seconds) or [0.0]
    return {name: 1000 * quantile(ordered, share) for name, share in shares.items()}


S = TypeVar("S", bound=System)
Notify = Callable[[str], object]
"""Called with a short description of each step."""


class MeasuredSystem(Generic[S]):
    """A created system, the processes that drain it, and the number of updates that it must have counted.

    Its methods raise `ProcessFailed` if a process of the benchmark fails.
    """

    def __init__(self, system: S, plan: Plan, notify: Notify, drainers: BenchCrew) -> None:
        self.system, self.plan, self._notify, self._drainers = system, plan, notify, drainers
        self.updates = 0

    def adders(self, workload: BenchWorkload, make: MakeAdder = Adder, **options: Any) -> BenchCrew:
        """Processes that add as the plan says, with these options of their roles."""
        add = partial(make, self.system, workload, self.plan.threads, of=self.plan.adders, **options)
        return BenchCrew("adder", [add(place=place).prepare for place in range(self.plan.adders)])

    def repeat(self, about: str, once: Callable[[float], Figures]) -> Result:
        """The medians of the figures of all repetitions, after a warm-up; `once` is given the seconds of adding."""
        rounds = []
        for number in range(self.plan.repetitions + 1):
            step = f"repetition {number} of {self.plan.repetitions}" if number else "warm-up"
            self._notify(f"{self.system.name}, {about}: {step}")
            rounds.append(once(self.plan.seconds if number else self.plan.warm_up))
            self.system.settle()
        return medians(rounds[1:])

    def added(self, begin: float, results: Sequence[AddResult]) -> tuple[int, float]:
        """Count what adders added since `begin`; returns the number of updates and the seconds."""
        number = sum(each.updates for each in results)
        self.updates += number
        return number, max(each.end for each in results) - begin

    def drain(self) -> float:
        """Combine all queued updates; returns the seconds."""
        begin, ends = self._drainers.run()
        return float(max(ends) - begin)

    def check(self) -> None:
        """Raise `WrongSum` unless all sums of the system are the number of updates, within its precision."""
        for place, found in self.system.sums().items():
            if abs(found - self.updates) > self.system.precision * self.updates:
                raise WrongSum(
                    f"{self.system.name} has counted {found:,} of {self.updates:,} updates in {place}: its figures "
                    "are invalid; does another program use its store?"
                )


@contextmanager
def measuring(system: S, plan: Plan, notify: Notify, drainers: int) -> Iterator[MeasuredSystem[S]]:
    """Create a system, start a number of processes that drain it, and always remove it."""
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        roles = [partial(drain, system, place) for place in range(drainers)]
        yield MeasuredSystem(system, plan, notify, stack.enter_context(BenchCrew("drainer", roles)))


def measure(
    system: System, workload: BenchWorkload, plan: Plan, notify: Notify, make: MakeAdder = Adder
) -> Result:
    """Measure adding and draining in turn: the updates per second of each phase, and of both in turn.

    A system that does not defer has counts after adding: there are no workers and no draining.

    Args:
        make: makes the adder of each adding process.

    Raises:
        WrongSum: the counts of the system differ from the added updates.
        ProcessFailed: a process of the benchmark has failed.
    """
    defers = system.defers
    about = f"{workload.per_transaction:,} per transaction, {quantity(plan.workers, 'worker')}"
    notify(f"{system.name}, {about}: drawing words")
    with (
        measuring(system, plan, notify, drainers=plan.workers if defers else 0) as run,
        run.adders(workload, make) as adders,
    ):

        def once(seconds: float) -> Figures:
            updates, taken = run.added(*adders.run(seconds))
            add, drain = updates / taken, updates / run.drain() if defers else None
            run.check()  # outside of the measured times
            return {"add": add, "drain": drain, "both": harmonic(add, drain) if drain else add}

        figures = run.repeat(about, once)
    return {
        "system": system.name,
        "store": system.store,
        "per_transaction": workload.per_transaction,
        "workers": plan.workers if defers else None,
        "updates": run.updates,
        **figures,
    }
