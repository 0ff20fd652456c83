"""A whole run of the benchmark: all requested parts in turn."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final

from cq.cli.bench.machine import machine_facts
from cq.cli.bench.measures.callers import awaiting, emitting, measure_callers
from cq.cli.bench.measures.export import measure_export
from cq.cli.bench.measures.figures import Result
from cq.cli.bench.measures.growth import measure_growth
from cq.cli.bench.measures.live import measure_live
from cq.cli.bench.measures.measured_system import Notify, Plan, measure
from cq.cli.bench.report import OWN, Report, compare
from cq.cli.bench.systems.backends import QUEUE_PREFIX, RIVALS, Backends
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.servers import require
from cq.cli.bench.systems.system import CannotMeasure, System, Unavailable
from cq.cli.bench.systems.workload import BenchWorkload
from cq.config.rollup import RollUp, RollUpLevel

Make = Callable[[], System]
_KEPT: Final = 3_600
"""Seconds for which each period of a measured roll-up must be kept, at least."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    """A run of all requested parts: the options of the command; empty lists skip a part.

    In turn the queue is measured with and without a cloud and an export, then with a roll-up only, and then with
    distinct visitors only. Live it is measured only with cloud, export and roll-up together. Growing, it has no cloud
    and no export. Raises `CannotMeasure` for invalid values, `InvalidConfiguration` for an invalid roll-up.

    Args:
        backends: the stores and servers to measure on.
        notify: called with a short description of each step.
        plans: one or more, which differ in their workers. Adding and draining in turn and live are measured with each
            plan; everything else, such as systems to compare with, with the first one.
        sizes: transaction sizes, in updates, for adding and draining in turn.
        against: systems to compare with in that part; None: all available systems.
        live: transaction sizes for adding and combining at the same time.
        rollup: a roll-up as for `cq.configure`; None: no roll-up.
        distinct: whether to measure a queue of distinct visitors.
        tasks: number of tasks of asyncio that add in one process; 0 skips this part.
    """

    backends: Backends
    notify: Notify
    workload: BenchWorkload
    plans: Sequence[Plan]
    buckets: int | None
    sizes: Sequence[int]
    against: Sequence[str] | None
    live: Sequence[int]
    rate: float | None
    grow: Sequence[str]
    grow_to: int
    emitters: bool
    tasks: int
    cloud: bool
    export: str | None
    rollup: str | None
    distinct: bool

    def __post_init__(self) -> None:
        kept = [each.retention or _KEPT for each in self._levels]
        if self.rollup is not None and min(kept, default=0) < _KEPT:
            raise CannotMeasure(
                "expected a roll-up that keeps each period for at least 1h, as nothing may expire while it is "
                f"measured, got: {self.rollup!r}"
            )
        for name in self.against or ():
            if name not in self._suitable:
                needs = RIVALS[name].needs
                raise CannotMeasure(f"{name} is compared with a queue that needs --{needs}: give it, too")

    @property
    def _levels(self) -> Sequence[RollUpLevel]:
        return RollUp.parse(self.rollup or "none").levels

    @property
    def _suitable(self) -> list[str]:
        """The systems whose results a measured queue has."""
        return [name for name, each in RIVALS.items() if not each.needs or getattr(self, each.needs)]

    def run(self) -> Report:
        """Run all parts.

        Raises:
            CannotMeasure: a part cannot be measured as requested; its subclass `Unavailable` if a system requested by
                name is missing.
            WrongSum: a system has counted wrongly.
        """
        left_out: dict[str, str] = {}
        # Before any measurement, so that a missing system is reported after seconds, not minutes.
        rivals = self._rivals(left_out)
        first = self.plans[0]
        callers = partial(measure_callers, self._queue, self.workload, first, self.notify)
        report: Report = {
            "machine": machine_facts(),
            "settings": self._settings(),
            "rows": list(self._in_turn(rivals.values())),
            "live": list(self._live()),
            "exports": list(self._exports()),
            "growth": list(self._growth(rivals)),
            "emitters": callers(emitting() if self.emitters else []),
            "tasks": callers(awaiting(first.threads, self.tasks) if self.tasks else []),
            "left_out": left_out,
        }
        report["machine"]["versions"] |= self.backends.versions
        compare(report)
        return report

    def _settings(self) -> dict[str, object]:
        """The settings that the report shows with the figures."""
        workload = asdict(self.workload)
        del workload["per_transaction"]
        names = ("buckets", "cloud", "export", "rollup", "distinct")
        return {
            **workload,
            **asdict(self.plans[0]),
            "workers": [plan.workers for plan in self.plans],
            **{name: getattr(self, name) for name in names},
        }

    def _in_turn(self, rivals: Iterable[Make]) -> Iterator[Result]:
        queues = self._queues(observed=True)
        measured = [*product(self.plans, queues), *product(self.plans[:1], rivals)]
        for size, (plan, make) in product(self.sizes, measured):
            yield measure(make(), replace(self.workload, per_transaction=size), plan, self.notify)

    def _live(self) -> Iterator[Result]:
        for size, plan in product(self.live, self.plans):
            queue = self._queue(cloud=self.cloud, export=self.export, rollup=self.rollup)
            workload = replace(self.workload, per_transaction=size)
            yield from measure_live(queue, workload, plan, self.rate, self.notify)

    def _exports(self) -> Iterator[Result]:
        if self.export == "postgresql":
            queue, conninfo = self._queue(export=self.export), self.backends.postgres
            yield measure_export(queue, conninfo, self.workload, self.plans[0], self.notify)

    def _growth(self, rivals: Mapping[str, Make]) -> Iterator[Result]:
        growing = [make for name, make in rivals.items() if RIVALS[name].needs]
        for what, make in product(self.grow, [*self._queues(observed=False), *growing]):
            system, plan = make(), self.plans[0]
            yield from measure_growth(system, what, self.workload, plan, self.grow_to, self.notify)

    def _queues(self, *, observed: bool) -> list[Make]:
        """The queue alone, with the requested observers, with the roll-up, and with sketches."""
        options: list[dict[str, Any]] = [{"rollup": self.rollup}, {"distinct": self.distinct}]
        if observed:
            options.insert(0, {"cloud": self.cloud, "export": self.export})
        return [self._queue, *(partial(self._queue, **each) for each in options if any(each.values()))]

    def _queue(
        self,
        *,
        cloud: bool = False,
        export: str | None = None,
        rollup: str | None = None,
        distinct: bool = False,
    ) -> QueueSystem:
        """A queue with a new name; raises `Unavailable` without the package for sketches, if it needs them."""
        if distinct:
            require("datasketches")
        parts = {"cloud": cloud, "export": export, "rollup": rollup, "distinct": distinct}
        return QueueSystem(
            "+".join([OWN, *(name for name, given in parts.items() if given)]),
            *self.backends.store(),
            f"{QUEUE_PREFIX}{secrets.token_hex(4)}",
            self.workload.kind,
            self.buckets,
            cloud,
            export and self.backends.reporting(export),
            rollup,
            distinct,
        )

    def _rivals(self, left_out: dict[str, str]) -> dict[str, Make]:
        """The available systems to compare with.

        A missing system is noted in `left_out`; it is an error if the request names it.
        """
        names = self._suitable if self.against is None else self.against
        periods = [level.period for level in self._levels]
        rivals: dict[str, Make] = {}
        for name in names:
            # A growing queue is compared only with the systems for a roll-up and for sketches.
            if self.sizes or (self.grow and RIVALS[name].needs):
                self.notify(f"looking for {name}")
                make = partial(self.backends.rival, name, self.workload.kind, periods)
                try:
                    make()
                except Unavailable as error:
                    if self.against is not None:
                        raise
                    left_out[name] = str(error)
                else:
                    rivals[name] = make
        return rivals
