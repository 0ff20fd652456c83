"""A whole run of the benchmark: all requested parts in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from cq.cli.bench.machine_facts import machine_facts
from cq.cli.bench.measures.emitting import measure_emitters
from cq.cli.bench.measures.growth import measure_growth
from cq.cli.bench.measures.live import measure_live
from cq.cli.bench.measures.phases import Plan, measure
from cq.cli.bench.report import BenchReport
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import AGAINST, GROWING, REPORTING, CannotMeasure, System, Unavailable
from cq.cli.bench.systems.systems import (
    Backends,
    Locations,
    make_against,
    make_queue,
    open_backends,
)
from cq.cli.bench.systems.workload import BenchWorkload

Notify = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The parts and settings of a run.

    Args:
        workload: the updates.
        plan: the plan of each measurement.
        buckets: buckets of the queues; None: the default of a new queue.
        sizes: transaction sizes, in updates, for adding and draining in turn; empty: skip this part.
        against: systems to compare with in that part; None: all available systems.
        live: transaction sizes for adding and combining at the same time.
        rate: updates per second of that part; None: full speed, then a half and a quarter of that.
        grow: kinds of growth, of `GROWING`.
        grow_to: the largest size.
        emitters: whether to measure single increments.
        cloud, export: whether to measure the queue with a cloud, and the kind of database to export to. In turn the
            queue is measured with and without them, live only with them, and growing only without them.

    Raises `CannotMeasure` for invalid values.
    """

    workload: BenchWorkload
    plan: Plan
    buckets: int | None
    sizes: Sequence[int] = ()
    against: Sequence[str] | None = None
    live: Sequence[int] = ()
    rate: float | None = None
    grow: Sequence[str] = ()
    grow_to: int = 1_000_000
    emitters: bool = False
    cloud: bool = False
    export: str | None = None

    def __post_init__(self) -> None:
        if self.export is not None and self.export not in REPORTING:
            raise CannotMeasure(f"expected to export into {' or '.join(REPORTING)}, got: {self.export!r}")
        for kind in self.grow:
            if kind not in GROWING:
                raise CannotMeasure(f"expected {' or '.join(GROWING)} to grow, got: {kind!r}")
        for size in (*self.sizes, *self.live):
            replace(self.workload, per_transaction=size)

    def settings(self) -> dict[str, object]:
        """The settings that the report shows with the figures."""
        workload = asdict(self.workload)
        del workload["per_transaction"]
        return {
            **workload,
            **asdict(self.plan),
            "buckets": self.buckets,
            "cloud": self.cloud,
            "export": self.export,
        }


def run(request: BenchRequest, locations: Locations, notify: Notify = lambda _: None) -> BenchReport:
    """Run all requested parts.

    Args:
        notify: called with a short description of each step.

    Raises:
        CannotMeasure: a part cannot be measured as requested; its subclass `Unavailable` if a system requested by name
            is missing.
        WrongSum: a system has counted wrongly.
    """
    report = BenchReport(machine_facts(), request.settings())
    with open_backends(locations) as backends:
        names = _available(backends, request, report, notify) if request.sizes else []
        for size in request.sizes:
            _measure_in_turn(backends, request, size, names, report, notify)
        for size in request.live:
            workload = replace(request.workload, per_transaction=size)
            report.live += measure_live(
                _full(backends, request), workload, request.plan, request.rate, notify
            )
        for what in request.grow:
            queue = make_queue(backends, request.workload.kind, request.buckets)
            report.growth += measure_growth(
                queue, what, request.workload, request.plan, request.grow_to, notify
            )
        if request.emitters:
            make = partial(make_queue, backends, request.workload.kind, request.buckets)
            report.emitters += measure_emitters(make, request.workload, request.plan, notify)
        report.machine["versions"] |= backends.versions
    return report


def _measure_in_turn(
    backends: Backends,
    request: BenchRequest,
    size: int,
    names: Sequence[str],
    report: BenchReport,
    notify: Notify,
) -> None:
    """Measure all systems at one transaction size."""
    kind = request.workload.kind
    makers: list[Callable[[], System]] = [partial(make_queue, backends, kind, request.buckets)]
    if request.cloud or request.export:
        makers.append(partial(_full, backends, request))
    makers += [partial(make_against, backends, name, kind) for name in names]
    workload = replace(request.workload, per_transaction=size)
    for make in makers:
        system = make()
        prefix = f"{system.name}, {size:,} per transaction"
        report.rows.append(measure(system, workload, request.plan, _prefixed(prefix, notify)))


def _prefixed(prefix: str, notify: Notify) -> Notify:
    return lambda step: notify(f"{prefix}: {step}")


def _full(backends: Backends, request: BenchRequest) -> QueueSystem:
    """A queue with all requested observers."""
    return make_queue(
        backends, request.workload.kind, request.buckets, cloud=request.cloud, export=request.export
    )


def _available(backends: Backends, request: BenchRequest, report: BenchReport, notify: Notify) -> list[str]:
    """The available systems to compare with.

    A missing system is noted in the report; it is an error if the request names it.
    """
    names = []
    for name in AGAINST if request.against is None else request.against:
        notify(f"looking for {name}")
        try:
            make_against(backends, name, request.workload.kind)
        except Unavailable as error:
            if request.against is not None:
                raise
            report.left_out[name] = str(error)
        else:
            names.append(name)
    return names
