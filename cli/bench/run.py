"""A whole run of the benchmark: all requested parts in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Final

from cq.cli.bench.machine_facts import machine_facts
from cq.cli.bench.measures.emitting import measure_emitters
from cq.cli.bench.measures.growth import measure_growth
from cq.cli.bench.measures.live import measure_live
from cq.cli.bench.measures.phases import Notify, Plan, measure
from cq.cli.bench.measures.tasks import measure_tasks
from cq.cli.bench.report import BenchReport
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import (
    AGAINST,
    DISTINCT,
    GROWING,
    PERIODS,
    REPORTING,
    CannotMeasure,
    System,
    Unavailable,
)
from cq.cli.bench.systems.systems import Backends, make_against
from cq.cli.bench.systems.workload import BenchWorkload
from cq.cli.shared.output import quantity
from cq.config.rollup import RollUp, RollUpLevel

_GROWN: Final = (PERIODS, DISTINCT)
"""The systems that are measured as they grow."""
_KEPT: Final = 3_600
"""Seconds for which each period of a measured roll-up must be kept, at least."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The parts and settings of a run: the options of the command; empty lists skip a part.

    In turn the queue is measured with and without a cloud and an export, then with a roll-up only, and then with
    distinct visitors only. Live it is measured only with cloud, export and roll-up together. Growing, it has no cloud
    and no export. Raises `CannotMeasure` for invalid values, `InvalidConfiguration` for an invalid roll-up.

    Args:
        plans: one or more, which differ in their workers. Adding and draining in turn and live are measured with each
            plan; everything else, such as systems to compare with, with the first one.
        sizes: transaction sizes, in updates, for adding and draining in turn.
        against: systems to compare with in that part; None: all available systems.
        live: transaction sizes for adding and combining at the same time.
        rollup: a roll-up as for `cq.configure`; None: no roll-up.
        distinct: whether to measure a queue of distinct visitors.
        tasks: number of tasks of asyncio that add in one process; 0 skips this part.
    """

    workload: BenchWorkload
    plans: Sequence[Plan]
    buckets: int | None
    sizes: Sequence[int] = ()
    against: Sequence[str] | None = None
    live: Sequence[int] = ()
    rate: float | None = None
    grow: Sequence[str] = ()
    grow_to: int = 1_000_000
    emitters: bool = False
    tasks: int = 0
    cloud: bool = False
    export: str | None = None
    rollup: str | None = None
    distinct: bool = False

    def __post_init__(self) -> None:
        if self.export is not None and self.export not in REPORTING:
            raise CannotMeasure(f"expected to export into {' or '.join(REPORTING)}, got: {self.export!r}")
        for kind in self.grow:
            if kind not in GROWING:
                raise CannotMeasure(f"expected {' or '.join(GROWING)} to grow, got: {kind!r}")
        kept = [each.retention or _KEPT for each in self._levels]
        if self.rollup is not None and min(kept, default=0) < _KEPT:
            raise CannotMeasure(
                "expected a roll-up that keeps each period for at least 1h, as nothing may expire while it is "
                f"measured, got: {self.rollup!r}"
            )
        for name, switch, is_given in (
            (PERIODS, "--rollup", self.rollup),
            (DISTINCT, "--distinct", self.distinct),
        ):
            if name in (self.against or ()) and not is_given:
                raise CannotMeasure(f"{name} is compared with a queue that needs {switch}: give it, too")
        for size in (*self.sizes, *self.live):
            replace(self.workload, per_transaction=size)  # checks the size

    @property
    def _levels(self) -> Sequence[RollUpLevel]:
        return RollUp.parse(self.rollup or "none").levels

    @property
    def periods(self) -> list[int]:
        """The periods of the roll-up, in seconds."""
        return [level.period for level in self._levels]

    @property
    def suitable(self) -> list[str]:
        """The systems whose results a measured queue has."""
        unsuitable = {PERIODS: self.rollup is None, DISTINCT: not self.distinct}
        return [name for name in AGAINST if not unsuitable.get(name)]

    def settings(self) -> dict[str, object]:
        """The settings that the report shows with the figures."""
        workload = asdict(self.workload)
        del workload["per_transaction"]
        return {
            **workload,
            **asdict(self.plans[0]),
            "workers": [plan.workers for plan in self.plans],
            "buckets": self.buckets,
            "cloud": self.cloud,
            "export": self.export,
            "rollup": self.rollup,
            "distinct": self.distinct,
        }


class BenchRun:
    """A run of all requested parts, with its report.

    Args:
        request: the parts and settings.
        backends: the stores and servers to measure on.
        notify: called with a short description of each step.
    """

    def __init__(self, request: BenchRequest, backends: Backends, notify: Notify) -> None:
        self._request, self._backends, self._notify = request, backends, notify
        self._report = BenchReport(machine_facts(), request.settings())

    def run(self) -> BenchReport:
        """Run all parts.

        Raises:
            CannotMeasure: a part cannot be measured as requested; its subclass `Unavailable` if a system requested by
                name is missing.
            WrongSum: a system has counted wrongly.
        """
        request, report, notify = self._request, self._report, self._notify
        first = request.plans[0]
        # Before any measurement, so that a missing system is reported after seconds, not minutes.
        names = self._available(self._compared())
        for size in request.sizes:
            self._measure_in_turn(replace(request.workload, per_transaction=size), names)
        for size in request.live:
            workload = replace(request.workload, per_transaction=size)
            for plan in request.plans:
                report.live += measure_live(self._full_queue(), workload, plan, request.rate, notify)
        for what in request.grow:
            for make in (
                self._queue,
                *self._variants(),
                *self._against(name for name in names if name in _GROWN),
            ):
                report.growth += measure_growth(
                    make(), what, request.workload, first, request.grow_to, notify
                )
        if request.emitters:
            report.emitters += measure_emitters(self._queue, request.workload, first, notify)
        if request.tasks:
            report.tasks += measure_tasks(self._queue, request.workload, first, request.tasks, notify)
        report.machine["versions"] |= self._backends.versions
        return report

    def _measure_in_turn(self, workload: BenchWorkload, names: Sequence[str]) -> None:
        """Measure all systems at one transaction size."""
        request = self._request
        queues: list[Callable[[], System]] = [self._queue]
        queues += [partial(self._queue, observed=True)] if request.cloud or request.export else []
        queues += self._variants()
        measured = [*product(request.plans, queues), *product(request.plans[:1], self._against(names))]
        for plan, make in measured:
            system = make()
            prefix = f"{system.name}, {workload.per_transaction:,} per transaction"
            if system.defers:
                prefix += f", {quantity(plan.workers, 'worker')}"
            notify = partial(self._notify_of, prefix)
            self._report.rows.append(measure(system, workload, plan, notify))

    def _notify_of(self, prefix: str, step: str) -> None:
        self._notify(f"{prefix}: {step}")

    def _queue(self, *, observed: bool = False) -> QueueSystem:
        """A queue, with the requested cloud and export if it is to be observed."""
        request = self._request
        cloud, export = (request.cloud, request.export) if observed else (False, None)
        return self._backends.queue(request.workload.kind, request.buckets, cloud=cloud, export=export)

    def _full_queue(self) -> QueueSystem:
        """A queue with all requested observers, and the roll-up."""
        request = self._request
        if request.rollup is None:
            return self._queue(observed=True)
        return self._backends.rollup_queue(
            request.workload.kind,
            request.buckets,
            request.rollup,
            cloud=request.cloud,
            export=request.export,
        )

    def _variants(self) -> list[Callable[[], System]]:
        """The queue with a roll-up and the queue of distinct visitors, as far as they are requested."""
        request, found = self._request, list[Callable[[], System]]()
        if request.rollup is not None:
            kind = request.workload.kind
            found.append(partial(self._backends.rollup_queue, kind, request.buckets, request.rollup))
        if request.distinct:
            found.append(partial(self._backends.distinct_queue, request.buckets))
        return found

    def _against(self, names: Iterable[str]) -> list[Callable[[], System]]:
        return [partial(self._make_against, name) for name in names]

    def _make_against(self, name: str) -> System:
        request = self._request
        return make_against(self._backends, name, request.workload.kind, request.periods)

    def _compared(self) -> list[str]:
        """The names of the systems to compare with: all in turn, and those of `_GROWN` as they grow."""
        request = self._request
        names = request.suitable if request.against is None else list(request.against)
        if request.sizes:
            return names
        return [name for name in names if name in _GROWN] if request.grow else []

    def _available(self, wanted: Iterable[str]) -> list[str]:
        """The available ones of these systems.

        A missing system is noted in the report; it is an error if the request names it.
        """
        names, against = [], self._request.against
        for name in wanted:
            self._notify(f"looking for {name}")
            try:
                self._make_against(name)
            except Unavailable as error:
                if against is not None:
                    raise
                self._report.left_out[name] = str(error)
            else:
                names.append(name)
        return names
