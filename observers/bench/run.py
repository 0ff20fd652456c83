"""A whole run of the benchmark, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from cq.observers.bench.about import machine_facts
from cq.observers.bench.errors import Unavailable
from cq.observers.bench.phases import Plan, measure
from cq.observers.bench.report import Report
from cq.observers.bench.system import System
from cq.observers.bench.systems import AGAINST, CQ, Places, Where, make_against, make_queue, places
from cq.observers.bench.workload import Workload

Told = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured.

    Args:
        sizes: updates in each transaction, one measurement for each.
        workload: everything else about the updates.
        plan: how it is measured.
        buckets: of the queues.
        against: what cq is compared with; None for all that is there.
    """

    sizes: Sequence[int]
    workload: Workload
    plan: Plan
    buckets: int
    against: Sequence[str] | None = None


def run(asked: Asked, where: Where, told: Told = lambda _: None) -> Report:
    """Measure all that is asked for.

    Args:
        told: called with what is being done, in a few words.

    Raises:
        CannotMeasure: it cannot be measured as it is asked for; `Unavailable` among them when something that was asked
            for by name is not there.
        WrongSum: a system has not counted right.
    """
    workload = asdict(asked.workload)
    del workload["per_transaction"]
    report = Report(machine_facts(), {**workload, **asdict(asked.plan), "buckets": asked.buckets})
    with places(where) as found:
        names = _available(found, asked, report, told)
        for size in asked.sizes:
            sized = Workload(size, asked.workload.keys, asked.workload.skew, asked.workload.kind)
            for name in (CQ, *names):
                system = _system(found, asked, name)
                report.rows.append(measure(system, sized, asked.plan, _prefixed(told, name, size)))
        report.machine["versions"] |= found.versions
    return report


def _available(found: Places, asked: Asked, report: Report, told: Told) -> list[str]:
    """What of the systems to compare with is there; what is not is noted, unless it was asked for."""
    names = []
    for name in AGAINST if asked.against is None else asked.against:
        told(f"looking for {name}")
        try:
            make_against(found, name, asked.workload.kind)
        except Unavailable as error:
            if asked.against is not None:
                raise
            report.left_out[name] = str(error)
        else:
            names.append(name)
    return names


def _system(found: Places, asked: Asked, name: str) -> System:
    if name == CQ:
        return make_queue(found, asked.workload.kind, asked.buckets)
    return make_against(found, name, asked.workload.kind)


def _prefixed(told: Told, name: str, size: int) -> Told:
    return lambda what: told(f"{name}, {size:,} per transaction: {what}")
