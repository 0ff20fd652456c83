"""A whole run of the benchmark, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from cq.observers.bench.about import machine_facts
from cq.observers.bench.emitting import measure_emitters
from cq.observers.bench.errors import CannotMeasure, Unavailable
from cq.observers.bench.growth import measure_growth
from cq.observers.bench.live import measure_live
from cq.observers.bench.names import AGAINST, GROWING, REPORTING
from cq.observers.bench.phases import Plan, measure
from cq.observers.bench.queued import QueueSystem
from cq.observers.bench.report import Report
from cq.observers.bench.system import System
from cq.observers.bench.systems import (
    Backends,
    Locations,
    make_against,
    make_queue,
    places,
)
from cq.observers.bench.workload import Workload

Notify = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured.

    Args:
        workload: the updates.
        plan: how it is measured.
        buckets: of the queues; None for what a new one gets.
        sizes: of transactions, in updates, to measure adding and draining in turn with; none for not at all.
        against: what cq is compared with in that; None for all that is there.
        live: sizes of transactions to measure adding and combining at the same time with.
        rate: updates per second then; None for as many as possible, and then for a half and a quarter of that.
        grow: what to let grow, of `names.GROWING`.
        grow_to: up to how many.
        emitters: whether to measure increments one at a time.
        cloud, export: whether the queue is measured with a cloud, and with an export into such a database: in turn it
            is measured so besides, live only so, and growing never.

    Raises `CannotMeasure` for what makes no sense.
    """

    workload: Workload
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
        for what in self.grow:
            if what not in GROWING:
                raise CannotMeasure(f"expected {' or '.join(GROWING)} to grow, got: {what!r}")
        for size in (*self.sizes, *self.live):
            replace(self.workload, per_transaction=size)

    def settings(self) -> dict[str, object]:
        """What the figures were measured with."""
        workload = asdict(self.workload)
        del workload["per_transaction"]
        return {
            **workload,
            **asdict(self.plan),
            "buckets": self.buckets,
            "cloud": self.cloud,
            "export": self.export,
        }


def run(request: Request, where: Locations, notify: Notify = lambda _: None) -> Report:
    """Measure all that is asked for.

    Args:
        told: called with what is being done, in a few words.

    Raises:
        CannotMeasure: it cannot be measured as it is asked for; `Unavailable` among them when something that was asked
            for by name is not there.
        WrongSum: a system has not counted right.
    """
    report = Report(machine_facts(), request.settings())
    with places(where) as found:
        names = _available(found, request, report, notify) if request.sizes else []
        for size in request.sizes:
            _measure_in_turn(found, request, size, names, report, notify)
        for size in request.live:
            workload = replace(request.workload, per_transaction=size)
            report.live += measure_live(_full(found, request), workload, request.plan, request.rate, notify)
        for what in request.grow:
            queue = make_queue(found, request.workload.kind, request.buckets)
            report.growth += measure_growth(
                queue, what, request.workload, request.plan, request.grow_to, notify
            )
        if request.emitters:
            make = partial(make_queue, found, request.workload.kind, request.buckets)
            report.emitters += measure_emitters(make, request.workload, request.plan, notify)
        report.machine["versions"] |= found.versions
    return report


def _measure_in_turn(
    found: Backends, request: Request, size: int, names: Sequence[str], report: Report, notify: Notify
) -> None:
    """Measure all systems with one size of transactions."""
    kind = request.workload.kind
    makers: list[Callable[[], System]] = [partial(make_queue, found, kind, request.buckets)]
    if request.cloud or request.export:
        makers.append(partial(_full, found, request))
    makers += [partial(make_against, found, name, kind) for name in names]
    workload = replace(request.workload, per_transaction=size)
    for make in makers:
        system = make()
        said = f"{system.name}, {size:,} per transaction"
        report.rows.append(measure(system, workload, request.plan, _behind(said, notify)))


def _behind(said: str, notify: Notify) -> Notify:
    return lambda what: notify(f"{said}: {what}")


def _full(found: Backends, request: Request) -> QueueSystem:
    """A queue with all that is asked for."""
    return make_queue(
        found, request.workload.kind, request.buckets, cloud=request.cloud, export=request.export
    )


def _available(found: Backends, request: Request, report: Report, notify: Notify) -> list[str]:
    """What of the systems to compare with is there; what is not is noted, unless it was asked for."""
    names = []
    for name in AGAINST if request.against is None else request.against:
        notify(f"looking for {name}")
        try:
            make_against(found, name, request.workload.kind)
        except Unavailable as error:
            if request.against is not None:
                raise
            report.left_out[name] = str(error)
        else:
            names.append(name)
    return names
