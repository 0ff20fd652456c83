"""Adding and draining in turn: the updates per second of each phase, in several repetitions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal

from cq.cli.bench.measures.figures import Figure, harmonic
from cq.cli.bench.measures.roles import AdderRole, AddResult, adding, draining
from cq.cli.bench.systems.system import System, WrongSum
from cq.cli.bench.systems.workload import BenchWorkload

Notify = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a measurement.

    Args:
        adders: number of processes that add.
        threads: threads of each adder, each with one transaction at a time.
        workers: number of processes that combine.
        seconds: duration of adding in each repetition; the added updates are then drained.
        warm_up: seconds of an unmeasured repetition before the others: it creates the keys and runs all code once.
        repetitions: number of measured repetitions.
    """

    adders: int = 2
    threads: int = 4
    workers: int = 1
    seconds: float = 2.0
    warm_up: float = 1.0
    repetitions: int = 3


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """The figures of one system for one size of transaction, in updates per second.

    Attributes:
        system, store: the attributes of the system.
        per_transaction: updates in each transaction.
        threads: threads of each adding process, or its tasks.
        add, drain: rates of the phases; `drain` is None if counts are current after adding.
        both: rate of adding and draining in turn; the rate of adding if `drain` is None.
        updates: number of added and verified updates, including the warm-up.
        workers: number of processes that combined; None if counts are current after adding.
    """

    system: str
    store: str
    per_transaction: int
    threads: int
    add: Figure
    drain: Figure | None
    both: Figure
    updates: int
    workers: int | None


def measure(
    system: System,
    workload: BenchWorkload,
    plan: Plan,
    notify: Notify = lambda _: None,
    role: type[AdderRole] = AdderRole,
) -> PhaseResult:
    """Create a system, measure it, and always remove it.

    Args:
        notify: called with a short description of each step.
        role: the role of the adding processes.

    Raises:
        WrongSum: the counts of the system differ from the added updates.
        ProcessFailed: a process of the benchmark has failed.
    """
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        notify("drawing words")
        adders = stack.enter_context(
            adding(plan.adders, lambda seed: role(system, workload, plan.threads, seed))
        )
        drainers = stack.enter_context(draining(system, plan.workers)) if system.defers else None
        adds: list[float] = []
        drains: list[float] = []
        updates = 0
        for number in range(plan.repetitions + 1):
            step = f"repetition {number} of {plan.repetitions}" if number else "warm-up"
            notify(step)
            begin, results = adders.run(plan.seconds if number else plan.warm_up)
            added = AddResult.of_all(results)
            updates += added.updates
            adds.append(added.updates / (added.ended - begin))
            if drainers is not None:
                begin, ends = drainers.run()
                drains.append(added.updates / (max(ends) - begin))
            check(system, updates)  # outside of the measured times
            system.settle()
    # The first repetition was the warm-up.
    add, drain = Figure(tuple(adds[1:])), Figure(tuple(drains[1:])) if drains else None
    both = add if drain is None else Figure(tuple(map(harmonic, add.values, drain.values)))
    return PhaseResult(
        system.name,
        system.store,
        workload.per_transaction,
        plan.threads,
        add,
        drain,
        both,
        updates,
        workers=plan.workers if system.defers else None,
    )


def check(system: System, updates: int) -> None:
    """Raise `WrongSum` unless the sum of all counts is the number of updates, within the system's precision."""
    found = system.total()
    if abs(Decimal(found) - updates) > system.precision * updates:
        raise WrongSum(
            f"{system.name} has counted {found:,} of {updates:,} updates: its figures are invalid; "
            "does another program use its store?"
        )
