"""A whole run of the benchmark: all requested parts in turn, and facts about the machine."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import apsw
import typer

from cq.cli.bench.command import GROWING, BenchOptions
from cq.cli.bench.measures.callers import measure_callers
from cq.cli.bench.measures.decide import Make, measure_decisions
from cq.cli.bench.measures.export import measure_export
from cq.cli.bench.measures.growth import measure_growth
from cq.cli.bench.measures.live import measure_live
from cq.cli.bench.measures.measured_system import Notify, Result, measure
from cq.cli.bench.report import Report, compare
from cq.cli.bench.systems.backends import QUEUE_PREFIX, REPORTING, RIVALS, Backends, require
from cq.cli.bench.systems.cq_queue import DecidingQueue, QueueSystem
from cq.cli.bench.systems.postgres import postgres_stock
from cq.cli.bench.systems.system import OWN, BenchWorkload, CannotMeasure, Plan, Unavailable
from cq.config.rollup import RollUp
from cq.distribution import version


class BenchRun:
    """A run of all requested parts; empty lists skip a part.

    In turn the queue is measured with and without a cloud and an export, then with a roll-up only, and then with
    distinct visitors only. Live it is measured only with cloud, export and roll-up together. Growing, it has no cloud
    and no export. Raises `CannotMeasure` for invalid values, `InvalidConfiguration` for an invalid roll-up, and
    `typer.BadParameter`.

    Args:
        options: of the command.
        backends: the stores and servers to measure on.
        notify: called with a short description of each step.
    """

    def __init__(self, options: BenchOptions, backends: Backends, notify: Notify) -> None:
        # All options are parsed before the first measurement.
        self._options, self._backends, self._notify = options, backends, notify
        self._workload = BenchWorkload(keys=options.keys)
        seconds = options.seconds
        # Adding and draining in turn and live are measured with each plan; everything else with the first one.
        self._plans = [
            Plan(options.adders, options.threads, workers, seconds, seconds / 2, options.repetitions)
            for workers in _numbers("--workers", options.workers.split(","))
        ]
        self._sizes = _numbers("--per-transaction", _words(options.per_transaction))
        self._live_sizes = _numbers("--live", _words(options.live))
        self._growing = [_one_of("--grow", GROWING, each) for each in _words(options.grow)]
        self._export = options.export and _one_of("--export", REPORTING, options.export)
        self._periods = [level.period for level in RollUp.parse(options.rollup or "none").levels]
        self._requested = self._rivals_to_try()
        self._check_buckets()

    def _check_buckets(self) -> None:
        """Raise `CannotMeasure` unless every worker would have a bucket."""
        most = max(plan.workers for plan in self._plans)
        if most > max(1, self._options.buckets or 0):
            raise CannotMeasure(
                f"expected a bucket for each of {most} workers, which divide the buckets among themselves: "
                f"give --buckets {most}, or more"
            )

    def run(self) -> Report:
        """Run all parts.

        Raises:
            CannotMeasure: a part cannot be measured as requested; its subclass `Unavailable` if a system requested by
                name is missing.
            WrongSum: a system has counted wrongly.
        """
        left_out: dict[str, str] = {}
        # Before any measurement, so that a missing system is reported after seconds, not minutes.
        rivals = self._available(left_out)
        first, options = self._plans[0], self._options
        callers = self._queue, self._workload, first, self._notify
        report: Report = {
            "machine": machine_facts(),
            "settings": {name: getattr(options, name) for name in _SETTINGS},
            "rows": list(self._in_turn(rivals.values())),
            "live": list(self._live()),
            "exports": list(self._exports()),
            "growth": list(self._growth(rivals)),
            "decisions": list(self._decisions(left_out)),
            "single_adds": measure_callers(*callers) if options.single_adds else [],
            "left_out": left_out,
        }
        report["machine"]["versions"] |= self._backends.versions
        compare(report)
        return report

    def _in_turn(self, rivals: Iterable[Make]) -> Iterator[Result]:
        queues = self._queues({"cloud": self._options.cloud, "export": self._export})
        # The alternatives combine in one process.
        alone = replace(self._plans[0], workers=1)
        measured = [*product(self._plans, queues), *((alone, make) for make in rivals)]
        for size, (plan, make) in product(self._sizes, measured):
            yield measure(make(), replace(self._workload, per_transaction=size), plan, self._notify)

    def _live(self) -> Iterator[Result]:
        options = self._options
        for size, plan in product(self._live_sizes, self._plans):
            queue = self._queue(cloud=options.cloud, export=self._export, rollup=options.rollup)
            yield from measure_live(queue, replace(self._workload, per_transaction=size), plan, self._notify)

    def _exports(self) -> Iterator[Result]:
        if self._export == "postgresql":
            queue, conninfo = self._queue(export=self._export), self._backends.postgres
            yield measure_export(queue, conninfo, self._workload, self._plans[0], self._notify)

    def _decisions(self, left_out: dict[str, str]) -> Iterator[Result]:
        options, backends = self._options, self._backends
        if not options.decide:
            return

        def queue(waits: bool = False) -> DecidingQueue:
            name = f"{QUEUE_PREFIX}{secrets.token_hex(4)}"
            return DecidingQueue(OWN, *backends.store(), name, options.buckets, waits=waits)

        postgres: list[Make] = []
        others: list[Make] = []
        if options.against != "none":
            try:
                postgres.append(partial(postgres_stock, backends.postgres, options.keys))
            except Unavailable as error:
                left_out["postgres-update"] = str(error)
            others.append(partial(RIVALS["read-modify-write"].make, backends, ()))
        yield from measure_decisions(queue, postgres, others, self._workload, self._plans[0], self._notify)

    def _growth(self, rivals: Mapping[str, Make]) -> Iterator[Result]:
        makes = [*self._queues(), *(make for name, make in rivals.items() if RIVALS[name].needs)]
        for what, make in product(self._growing, makes):
            most, plan = self._options.grow_to, self._plans[0]
            yield from measure_growth(make(), what, self._workload, plan, most, self._notify)

    def _queues(self, *observed: dict[str, Any]) -> list[Make]:
        """The queue alone, with these observers, with the roll-up, and with sketches."""
        options = self._options
        requested = [*observed, {"rollup": options.rollup}, {"distinct": options.distinct}]
        return [self._queue, *(partial(self._queue, **each) for each in requested if any(each.values()))]

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
            require("datasketches", "sketches")
        parts = {"cloud": cloud, "export": export, "rollup": rollup, "distinct": distinct}
        return QueueSystem(
            "+".join([OWN, *(name for name, given in parts.items() if given)]),
            *self._backends.store(),
            f"{QUEUE_PREFIX}{secrets.token_hex(4)}",
            self._options.buckets,
            cloud,
            export and self._backends.reporting(export),
            rollup,
            distinct,
        )

    def _rivals_to_try(self) -> list[str]:
        """The systems to compare with: those of the request, by default all whose results a measured queue has."""
        options = self._options
        suitable = [name for name, each in RIVALS.items() if not each.needs or getattr(options, each.needs)]
        if options.against is None:
            return suitable
        names = [_one_of("--against", RIVALS, each) for each in _words(options.against)]
        for name in names:
            if name not in suitable:
                needs = RIVALS[name].needs
                raise CannotMeasure(f"{name} is compared with a queue that needs --{needs}: give it, too")
        return names

    def _available(self, left_out: dict[str, str]) -> dict[str, Make]:
        """The systems to compare with that are available.

        A missing system is noted in `left_out`; it is an error if the request names it.
        """
        rivals: dict[str, Make] = {}
        for name in self._requested:
            # A growing queue is compared only with the systems for a roll-up and for sketches.
            if self._sizes or (self._growing and RIVALS[name].needs):
                self._notify(f"looking for {name}")
                make = partial(RIVALS[name].make, self._backends, self._periods)
                try:
                    make()
                except Unavailable as error:
                    if self._options.against is not None:
                        raise
                    left_out[name] = str(error)
                else:
                    rivals[name] = make
        return rivals


_SETTINGS = (
    *("keys", "adders", "threads", "workers", "buckets", "seconds", "repetitions"),
    *("cloud", "export", "rollup", "distinct"),
)
"""The options that the report shows with the figures."""


def _words(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _numbers(option: str, words: list[str]) -> list[int]:
    with suppress(ValueError):
        numbers = [int(each) for each in words]
        if min(numbers, default=1) >= 1:
            return numbers
    expected = f"expected numbers of at least 1, such as 1,5,100, got: {','.join(words)!r}"
    raise typer.BadParameter(expected, param_hint=option)


def _one_of(option: str, choices: Iterable[str], given: str) -> str:
    if given not in choices:
        expected = f"expected one of {', '.join(choices)}, got: {given!r}"
        raise typer.BadParameter(expected, param_hint=option)
    return given


def machine_facts() -> dict[str, Any]:
    """Facts that the figures depend on; `load` is the load average of the last minute and should be low."""
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {
            "cq": version(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
        },
    }
