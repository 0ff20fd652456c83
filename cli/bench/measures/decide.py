"""Decisions: requests that take pieces of stocks, by a queue with a decider and by the systems to compare it with.

In turn, as updates are added and drained; and one by one by callers that wait for the answer, while a worker decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final

from cq.cli.bench.measures.live import work
from cq.cli.bench.measures.measured_system import (
    Adder,
    BenchCrew,
    Figures,
    MeasuredSystem,
    Notify,
    Result,
    TimedWork,
    measure,
    measuring,
    times_ms,
)
from cq.cli.bench.systems.cq_queue import DecidingQueue
from cq.cli.bench.systems.system import Add, BenchWorkload, Plan, System

BULK: Final = 1_000
"""Requests in a transaction that asks many."""
SKEWS: Final = (0.0, 1.5)
_CALLERS: Final = 128
"""Threads of each process that call `ask_now`: they share transactions."""
_IDLE: Final = 20.0
"""Calls per second of an idle system."""

Make = Callable[[], System]


def measure_decisions(
    queue: Callable[..., DecidingQueue],
    postgres: Sequence[Make],
    others: Sequence[Make],
    workload: BenchWorkload,
    plan: Plan,
    notify: Notify,
) -> Iterator[Result]:
    """Measure decisions per second of one key and of many, and the time until a caller has its answer.

    Args:
        queue: returns a queue, given whether adders wait for answers.
        postgres: PostgreSQL, if it is compared.
        others: systems that are not compared where all requests of a transaction are of one key, which they read once.

    Raises the errors of `measure`.
    """
    one = replace(workload, keys=1, per_transaction=BULK, repeats=True)
    for make in (queue, *postgres):
        yield _row("one key", measure(make(), one, plan, notify))
    hottest = SKEWS[-1]
    for what, drawn in (("one key", one), (_skewed(hottest), replace(workload, skew=hottest, repeats=True))):
        calls = partial(
            measure_calls, f"{what}, one by one", workload=replace(drawn, per_transaction=1), notify=notify
        )
        yield from calls(system=queue(waits=True), plan=replace(plan, threads=_CALLERS))
        for make in (*postgres, *others):
            yield from calls(system=make(), plan=plan)
    for skew in SKEWS:
        drawn = replace(workload, skew=skew, per_transaction=BULK, repeats=True)
        for make in (queue, *postgres, *others):
            yield _row(_skewed(skew), measure(make(), drawn, plan, notify))


def _skewed(skew: float) -> str:
    return f"keys with a skew of {skew:g}"


def _row(what: str, found: Result) -> Result:
    names = ("system", "store", "per_transaction", "add", "drain")
    both, repetitions = found["both"], found["both_repetitions"]
    return {
        "what": what,
        **{name: found[name] for name in names},
        "decisions": both,
        "decisions_repetitions": repetitions,
    }


def measure_calls(
    what: str, system: System, workload: BenchWorkload, plan: Plan, notify: Notify
) -> Iterator[Result]:
    """Measure calls that wait for their answers: at full speed, and of a queue at half of it and idle."""
    workers = [partial(work, system)] * plan.workers if isinstance(system, DecidingQueue) else []
    with measuring(system, plan, notify, drainers=0) as run, BenchCrew("worker", workers):
        full = _calls(run, workload, f"{what}, full speed", None)
        yield full
        if workers:
            yield _calls(run, workload, f"{what}, half speed", full["decisions"] / 2)
            run.plan = replace(plan, adders=1, threads=1)
            yield _calls(run, workload, f"{what}, idle", _IDLE)


def _calls(run: MeasuredSystem[Any], workload: BenchWorkload, what: str, rate: float | None) -> Result:
    def once(seconds: float) -> Figures:
        begin, found = adders.run(seconds)
        calls, taken = run.added(begin, [each[:2] for each in found])
        run.check()
        return {"decisions": calls / taken, **times_ms(second for each in found for second in each[2])}

    with run.adders(workload, TimedAdder, rate=rate) as adders:
        figures = run.repeat(what, once)
    return {
        "what": what,
        "system": run.system.name,
        "store": run.system.store,
        "per_transaction": 1,
        **figures,
    }


class TimedAdder(Adder):
    """Adds, and notes the seconds that each call takes."""

    def prepare(self, stack: ExitStack) -> TimedWork:
        """The work returns the number of calls, the time of the last one, and the seconds of each."""
        seconds: list[float] = []

        def timed(add: Add, updates: Any) -> None:
            begun = perf_counter()
            add(updates)
            seconds.append(perf_counter() - begun)

        adders = [partial(timed, self.system.adder(stack)) for _ in range(self.threads)]
        work = self.adding(adders, stack)

        def run(begin: float, end: float) -> Any:
            seconds.clear()
            return *work(begin, end), seconds

        return run
