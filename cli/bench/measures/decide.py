"""Decisions: requests that take pieces of stocks, by a queue with a decider and by the systems to compare it with.

In turn, as updates are added and drained; and one by one by callers that wait for the answer, while a worker decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cq.cli.bench.measures.callers import AsyncAdd, Callers, TaskAdder
from cq.cli.bench.measures.live import work
from cq.cli.bench.measures.measured_system import (
    Adder,
    BenchCrew,
    Figures,
    MakeAdder,
    MeasuredSystem,
    Notify,
    Result,
    measure,
    measuring,
    times_ms,
)
from cq.cli.bench.systems.backends import require
from cq.cli.bench.systems.cq_queue import ANSWER_SECONDS, DecidingQueue, QueueSystem
from cq.cli.bench.systems.system import OWN, BenchWorkload, Plan, System, Unavailable, requests

BULK: Final = 1_000
"""Requests in a transaction that asks many."""
SKEWS: Final = (0.0, 1.5)
_THREADS: Final = 128
_TASKS: Final = 500
"""Threads, or tasks, of each process that call `ask_now`: they share transactions."""
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
        for kind in _callers():
            system = replace(queue(waits=True), name=kind.name)
            yield from calls(system=system, plan=replace(plan, threads=kind.number), adder=kind.make)
        for make in (*postgres, *others):
            yield from calls(system=make(), plan=plan)
    for skew in SKEWS:
        drawn = replace(workload, skew=skew, per_transaction=BULK, repeats=True)
        for make in (queue, *postgres, *others):
            yield _row(_skewed(skew), measure(make(), drawn, plan, notify))


def _callers() -> list[Callers]:
    """Who calls `ask_now`: threads, and tasks if greenlet is installed."""
    by_threads = Callers(OWN, Adder, _THREADS)
    try:
        require("greenlet", "aio")
    except Unavailable:
        return [by_threads]
    return [by_threads, Callers("cq.aio", partial(TaskAdder, by=_asking), _TASKS)]


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
    what: str,
    system: System,
    workload: BenchWorkload,
    plan: Plan,
    notify: Notify,
    adder: MakeAdder = Adder,
) -> Iterator[Result]:
    """Measure calls that wait for their answers: at full speed, and of a queue at half of it and idle.

    Args:
        adder: makes the role of each process that calls.
    """
    workers = [partial(work, system)] * plan.workers if isinstance(system, DecidingQueue) else []
    with measuring(system, plan, notify, drainers=0) as run, BenchCrew("worker", workers):
        calls = partial(_calls, run, partial(run.adders, workload, adder))
        full = calls(f"{what}, full speed", None)
        yield full
        if workers:
            yield calls(f"{what}, half speed", full["decisions"] / 2)
            run.plan = replace(plan, adders=1, threads=1)
            yield calls(f"{what}, idle", _IDLE)


def _calls(run: MeasuredSystem[Any], crew: Callable[..., BenchCrew], what: str, rate: float | None) -> Result:
    def once(seconds: float) -> Figures:
        begin, found = adders.run(seconds)
        calls, taken = run.added(begin, found)
        run.check()
        return {"decisions": calls / taken, **times_ms(second for each in found for second in each.seconds)}

    with crew(rate=rate) as adders:
        figures = run.repeat(what, once)
    return {
        "what": what,
        "system": run.system.name,
        "store": run.system.store,
        "per_transaction": 1,
        **figures,
    }


def _asking(system: QueueSystem, stack: ExitStack) -> AsyncAdd:
    """The function that asks a queue with a decider for each update of a transaction, and waits for the answers."""
    from cq import aio  # needs an extra

    db, queue = aio.AsyncDatabase(system.open()), aio.CombineQueue[str, Any](system.queue)

    async def ask(updates: Mapping[str, Any]) -> None:
        for key in requests(updates):
            await queue.ask_now(db, key, 1, timeout=ANSWER_SECONDS)

    return ask
