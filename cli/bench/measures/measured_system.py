"""Measurements of a system by processes that add and combine, and their figures; the first one: adding and draining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import partial
from math import ceil
from statistics import median
from typing import Any, Generic, TypeVar

from cq.cli.bench.measures.crew import Adder, AdderRole, AddResult, BenchCrew, MakeAdder, drain
from cq.cli.bench.systems.system import System, WrongSum
from cq.cli.bench.systems.workload import BenchWorkload, Plan
from cq.cli.shared.output import quantity

Result = dict[str, Any]
"""A result as in the JSON of the report."""


def medians(**figures: Sequence[float] | None) -> Result:
    """The medians of several repetitions under their names, then the values of each repetition; None: not measured."""
    rounded = {name: values and [round(each, 3) for each in values] for name, values in figures.items()}
    return {
        **{name: values and round(median(values), 3) for name, values in rounded.items()},
        **{f"{name}_repetitions": values for name, values in rounded.items()},
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

    def adders(self, workload: BenchWorkload, **options: Any) -> BenchCrew:
        """Processes that add as the plan says, with these options of their roles."""
        plan = self.plan
        places = range(plan.adders)
        roles = [
            AdderRole(self.system, workload, plan.threads, each, plan.adders, **options) for each in places
        ]
        return BenchCrew("adder", [each.prepare for each in roles])

    def repetitions(self, about: str) -> Iterator[float]:
        """The seconds of adding in each repetition; the first one is the warm-up."""
        for number in range(self.plan.repetitions + 1):
            step = f"repetition {number} of {self.plan.repetitions}" if number else "warm-up"
            self._notify(f"{self.system.name}, {about}: {step}")
            yield self.plan.seconds if number else self.plan.warm_up

    def added(self, begin: float, results: Sequence[AddResult]) -> tuple[int, float]:
        """Count what adders added since `begin`; returns the number of updates and the seconds."""
        numbers, ends = zip(*results, strict=True)
        self.updates += sum(numbers)
        return sum(numbers), max(ends) - begin

    def drain(self) -> float:
        """Combine all queued updates; returns the seconds."""
        begin, ends = self._drainers.run()
        return float(max(ends) - begin)

    def check(self) -> None:
        """Raise `WrongSum` unless all sums of the system are the number of updates, within its precision."""
        for place, found in self.system.sums().items():
            if abs(Decimal(found) - self.updates) > self.system.precision * self.updates:
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
        roles = [partial(drain, system, place, drainers) for place in range(drainers)]
        yield MeasuredSystem(system, plan, notify, stack.enter_context(BenchCrew("drainer", roles)))


def measure(
    system: System,
    workload: BenchWorkload,
    plan: Plan,
    notify: Notify,
    make: MakeAdder = Adder,
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
    about = f"{workload.per_transaction:,} per transaction"
    about += f", {quantity(plan.workers, 'worker')}" if defers else ""
    notify(f"{system.name}, {about}: drawing words")
    with (
        measuring(system, plan, notify, drainers=plan.workers if defers else 0) as run,
        run.adders(workload, make=make) as adders,
    ):
        adds, drains = [], []
        for seconds in run.repetitions(about):
            updates, taken = run.added(*adders.run(seconds))
            adds.append(updates / taken)
            if defers:
                drains.append(updates / run.drain())
            run.check()  # outside of the measured times
            system.settle()
    del adds[:1], drains[:1]  # of the warm-up
    return {
        "system": system.name,
        "store": system.store,
        "per_transaction": workload.per_transaction,
        "workers": plan.workers if defers else None,
        "updates": run.updates,
        **medians(add=adds, drain=drains or None, both=list(map(harmonic, adds, drains)) if defers else adds),
    }
