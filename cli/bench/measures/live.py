"""Adding and combining at the same time: the rate of cq, and the latency of combining.

A separate process, the prober, adds an update of a new key every `PROBE_SECONDS` and watches the value of that key. The
latency is the time from the end of its commit until another process could read the combined value. Probes are few: they
measure the latency under the load without adding to the load.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import cq
from cq import runtime
from cq.cli.bench.measures.crew import BenchCrew, TimedWork
from cq.cli.bench.measures.figures import Figure, quantile
from cq.cli.bench.measures.phases import Notify, Plan, check
from cq.cli.bench.measures.roles import AdderRole, AddResult, adding
from cq.cli.bench.systems.cq_queue import QueueSystem
from cq.cli.bench.systems.system import CannotMeasure
from cq.cli.bench.systems.workload import KINDS, BenchWorkload
from cq.config.queue import read_config
from cq.keys import QueueKeys
from cq.store.transact import transact

PROBE_SECONDS: Final = 0.02
_REPORT_SECONDS: Final = 120.0
_SHARES: Final = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Figures of adding and combining at the same time.

    Attributes:
        system, store: the attributes of the system.
        per_transaction: updates in each transaction.
        rate: requested updates per second; None: full speed.
        added: added updates per second.
        done: updates per second until all updates were combined and, with an export, exported.
        p50, p99, highest: latency in seconds, from the end of a commit until the combined value could be read.
        probes: number of measured commits in all repetitions.
        workers: number of processes that combined.
    """

    system: str
    store: str
    per_transaction: int
    rate: float | None
    added: Figure
    done: Figure
    p50: Figure
    p99: Figure
    highest: Figure
    probes: int
    workers: int


def measure_live(
    system: QueueSystem,
    workload: BenchWorkload,
    plan: Plan,
    rate: float | None,
    notify: Notify = lambda _: None,
) -> list[LiveResult]:
    """Measure a queue at the given rate; without a rate at full speed, and at a half and a quarter of that.

    The queue is created first, and always removed. Raises the errors of `phases.measure`.
    """
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        stack.enter_context(BenchCrew("worker", [partial(_work, system)] * plan.workers))
        probing = stack.enter_context(BenchCrew("prober", [ProberRole(system).prepare]))
        running = _LiveRun(system, workload, plan, probing, notify)
        first = running.measure(rate)
        shares = _SHARES if rate is None else ()
        return [first, *(running.measure(first.done.median * share) for share in shares)]


class _LiveRun:
    """A queue with its workers and prober; each measurement starts and ends its adders."""

    def __init__(
        self, system: QueueSystem, workload: BenchWorkload, plan: Plan, probing: BenchCrew, notify: Notify
    ) -> None:
        self._system, self._workload, self._plan = system, workload, plan
        self._probing, self._notify = probing, notify
        self._updates = 0

    def measure(self, rate: float | None) -> LiveResult:
        plan, speed = self._plan, "at full speed" if rate is None else f"at {rate:,.0f} updates/s"
        share = None if rate is None else rate / plan.adders
        role = partial(AdderRole, self._system, self._workload, plan.threads, rate=share)
        with adding(plan.adders, role) as adders:
            self._notify(f"live, {speed}: warm-up")
            self._once(adders, plan.warm_up)
            rounds = []
            for number in range(plan.repetitions):
                self._notify(f"live, {speed}: repetition {number + 1} of {plan.repetitions}")
                rounds.append(self._once(adders, plan.seconds))
        added, done, latencies = zip(*rounds, strict=True)
        return LiveResult(
            system=self._system.name,
            store=self._system.store,
            per_transaction=self._workload.per_transaction,
            rate=rate,
            added=Figure(added),
            done=Figure(done),
            p50=Figure(tuple(quantile(each, 0.5) for each in latencies)),
            p99=Figure(tuple(quantile(each, 0.99) for each in latencies)),
            highest=Figure(tuple(each[-1] for each in latencies)),
            probes=sum(map(len, latencies)),
            workers=plan.workers,
        )

    def _once(self, adders: BenchCrew, seconds: float) -> tuple[float, float, list[float]]:
        """One repetition: added and done updates per second, and the latencies in ascending order."""
        begin = adders.start(seconds)
        self._probing.start(seconds, begin)
        added = AddResult.of_all(adders.results())
        self._system.wait_until_done()
        ended = runtime.monotonic()
        (latencies,) = self._probing.results()
        self._updates += added.updates + len(latencies)
        self._system.wait_until_done()  # the prober may have added more after the adders ended
        check(self._system, self._updates)
        return added.updates / (added.ended - begin), added.updates / (ended - begin), sorted(latencies)


def _work(system: QueueSystem, stack: ExitStack) -> TimedWork:
    """The role of a process that combines from its start to its end, whatever the times."""
    system.run_worker(stack)
    return lambda begin, end: None


class ProberRole:
    """A process that adds an update of a new key every `PROBE_SECONDS`, and measures the time until it is combined."""

    def __init__(self, system: QueueSystem) -> None:
        self._system = system

    def prepare(self, stack: ExitStack) -> TimedWork:
        self._db = self._system.open()
        self._queue = cq.CombineQueue(self._system.queue)
        config = transact(self._db, lambda tr: read_config(tr.snapshot, self._system.queue))
        self._encode = config.key.encoder()
        self._update = KINDS[self._system.kind](1)
        self._number = 0
        return self.run

    def run(self, begin: float, end: float) -> list[float]:
        """The seconds of each probe; raises `CannotMeasure` after a probe of more than `_REPORT_SECONDS`."""
        probes = []
        due = begin
        while due < end:
            runtime.sleep(max(0.0, due - runtime.monotonic()))
            probes.append(self._probe())
            due = max(due + PROBE_SECONDS, runtime.monotonic())
        deadline = runtime.monotonic() + _REPORT_SECONDS
        return [probe.seconds(deadline) for probe in probes]

    def _probe(self) -> _Probe:
        key, self._number = f"probe {self._number}", self._number + 1
        value = QueueKeys(self._system.queue).value(self._encode(key))
        # Watch before adding: a watch set later would miss a change by a fast worker.
        watch = transact(self._db, lambda tr: tr.watch(value))
        probe = _Probe(watch)
        transact(self._db, lambda tr: self._queue.add(tr, {key: self._update}))
        probe.committed = runtime.monotonic()
        return probe


class _Probe:
    """The times of a commit and of the change of the key's value."""

    def __init__(self, watch: Any) -> None:
        self.committed = 0.0
        self._changed = 0.0
        self._fired = threading.Event()
        self._watch = watch  # keep a reference: a watch ends when it is garbage-collected
        watch.on_ready(self._note)

    def _note(self, watch: Any) -> None:
        self._changed = runtime.monotonic()
        self._fired.set()

    def seconds(self, deadline: float) -> float:
        """Wait for the change; returns the seconds from the end of the commit to the change."""
        if not self._fired.wait(max(0.0, deadline - runtime.monotonic())):
            raise CannotMeasure(
                f"an update was not combined within {_REPORT_SECONDS:.0f} s: is a worker running?"
            )
        self._watch.wait()  # raises the error of the watch, if it did not end with a change
        return max(0.0, self._changed - self.committed)
