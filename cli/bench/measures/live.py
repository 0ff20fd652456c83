"""Adding and combining at the same time: the rate of cq, and the latency of combining.

A separate process, the prober, adds an update of a new key every `PROBE_SECONDS` and watches the value of that key. The
latency is the time from the end of its commit until another process could read the combined value. Probes are few: they
measure the latency under the load without adding to the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import cq
from cq import runtime
from cq.cli.bench.measures.measured_system import (
    BenchCrew,
    Figures,
    MeasuredSystem,
    Notify,
    Result,
    TimedWork,
    measuring,
    times_ms,
)
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import BenchWorkload, CannotMeasure, Plan
from cq.config.queue import read_config
from cq.keys import QueueKeys
from cq.store.transact import transact

PROBE_SECONDS: Final = 0.02
_REPORT_SECONDS: Final = 120.0
_SHARES: Final = 0.5, 0.25
_IDLE: Final = 100.0
"""Updates per second of an idle queue."""


def measure_live(
    system: QueueSystem, workload: BenchWorkload, plan: Plan, notify: Notify
) -> Iterator[Result]:
    """Measure a queue at full speed, at a half and a quarter of that, and idle.

    Of a result, `done` is the number of updates per second until all were combined and, with an export, exported.
    Raises the errors of `measure`.
    """
    with (
        measuring(system, plan, notify, drainers=0) as run,
        BenchCrew("worker", [partial(work, system)] * plan.workers),
        BenchCrew("prober", [partial(_probe, system)]) as probing,
    ):
        full = _at_rate(run, workload, probing, None)
        yield full
        for rate in (*(full["done"] * share for share in _SHARES), _IDLE):
            yield _at_rate(run, workload, probing, rate)


def _at_rate(
    run: MeasuredSystem[QueueSystem], workload: BenchWorkload, probing: BenchCrew, rate: float | None
) -> Result:
    probes: list[int] = []

    def once(seconds: float) -> Figures:
        begin = adders.start(seconds)
        probing.start(seconds, begin)
        updates, taken = run.added(begin, adders.results())
        run.system.wait_until_done()
        ended = runtime.monotonic()
        (latencies,) = probing.results()
        probes.append(len(latencies))
        run.updates += len(latencies)
        run.system.wait_until_done()  # the prober may have added more after the adders ended
        run.check()
        return {"added": updates / taken, "done": updates / (ended - begin), **times_ms(latencies)}

    speed = "at full speed" if rate is None else f"at {rate:,.0f} updates/s"
    with run.adders(workload, rate=rate) as adders:
        figures = run.repeat(f"live, {speed}", once)
    return {
        "system": run.system.name,
        "store": run.system.store,
        "per_transaction": workload.per_transaction,
        "workers": run.plan.workers,
        "probes": sum(probes[1:]),
        "rate": rate and round(rate, 1),
        **figures,
    }


def work(system: QueueSystem, stack: ExitStack) -> TimedWork:
    """The role of a process that combines from its start to its end, whatever the times."""
    system.run_worker(stack)
    return lambda begin, end: None


class Probe(NamedTuple):
    """An update of a new key: the time of its commit, and the time when the key's value changed, as soon as it does."""

    committed: float
    changed: SimpleQueue[float]
    watch: Any  # a watch ends when it is garbage-collected

    def seconds(self, deadline: float) -> float:
        """Wait for the change; returns the seconds from the end of the commit to the change."""
        try:
            changed = self.changed.get(timeout=max(0.0, deadline - runtime.monotonic()))
        except Empty:
            raise CannotMeasure(
                f"an update was not combined within {_REPORT_SECONDS:.0f} s: is a worker running?"
            ) from None
        self.watch.wait()  # raises the error of the watch, if it did not end with a change
        return max(0.0, changed - self.committed)


def _probe(system: QueueSystem, stack: ExitStack) -> TimedWork:
    """The role of the prober; returns the seconds of each probe, raises `CannotMeasure` after `_REPORT_SECONDS`."""
    db, queue, numbers = system.open(), cq.CombineQueue(system.queue), count()
    encode = transact(db, lambda tr: read_config(tr.snapshot, system.queue)).key.encoder()

    def probe() -> Probe:
        key, changed = f"probe {next(numbers)}", SimpleQueue[float]()
        # Watch before adding: a watch set later would miss a change by a fast worker.
        watch = transact(db, lambda tr: tr.watch(QueueKeys(system.queue).value(encode(key))))
        watch.on_ready(lambda _: changed.put(runtime.monotonic()))
        transact(db, lambda tr: queue.add(tr, {key: 1}))
        return Probe(runtime.monotonic(), changed, watch)

    def run(begin: float, end: float) -> list[float]:
        probes, due = [], begin
        while due < end:
            runtime.sleep(max(0.0, due - runtime.monotonic()))
            probes.append(probe())
            due = max(due + PROBE_SECONDS, runtime.monotonic())
        deadline = runtime.monotonic() + _REPORT_SECONDS
        return [each.seconds(deadline) for each in probes]

    return run
