"""Adding and combining at the same time: how much cq does, and how soon each commit shows.

A prober of its own adds an update of a new key every so often, and has the store watch that key's value: the latency is
the time from the end of its commit until another process could read the combined value. Probes are few, so they
tell of the load beside them and are none themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import cq
from cq import machine
from cq.config import read_config
from cq.keys import QueueKeys
from cq.observers.bench.crew import BenchCrew
from cq.observers.bench.errors import CannotMeasure
from cq.observers.bench.figures import Figure, quantile
from cq.observers.bench.phases import FIRST_SEED, Plan, check
from cq.observers.bench.queued import QueueSystem, RunningWorker
from cq.observers.bench.roles import AdderRole
from cq.observers.bench.stored import close_opened
from cq.observers.bench.workload import KINDS, Workload
from cq.store.transact import transact

PROBE_SECONDS: Final = 0.02
_REPORT_SECONDS: Final = 120.0
_SHARES: Final = 0.5, 0.25

Notify = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Figures of adding and combining at the same time.

    Attributes:
        system, store: as the system's.
        per_transaction: updates in each transaction.
        rate: updates per second that were to be added; None for as many as possible.
        added: updates per second that were added.
        done: updates per second, until all of them were combined and, with an export, exported.
        p50, p99, highest: of the seconds from the end of a commit until the combined value could be read.
        probes: commits of which these tell, in all repetitions.
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


def measure_live(
    system: QueueSystem, workload: Workload, plan: Plan, rate: float | None, notify: Notify = lambda _: None
) -> list[LiveResult]:
    """Measure a queue at full speed and then at a half and a quarter of what it did; or at the rate that is given.

    The queue is made before and removed after, whatever happens. Raises as `phases.measure`.
    """
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        stack.enter_context(BenchCrew([LiveWorkerRole(system) for _ in range(plan.workers)]))
        probing = stack.enter_context(BenchCrew([ProberRole(system)]))
        running = _LiveRun(system, workload, plan, probing, notify)
        first = running.measure(rate)
        shares = _SHARES if rate is None else ()
        return [first, *(running.measure(first.done.median * share) for share in shares)]


class _LiveRun:
    """A queue with its workers and prober; adders come and go."""

    def __init__(
        self, system: QueueSystem, workload: Workload, plan: Plan, probing: BenchCrew, notify: Notify
    ) -> None:
        self._system, self._workload, self._plan = system, workload, plan
        self._probing, self._told = probing, notify
        self._updates = 0

    def measure(self, rate: float | None) -> LiveResult:
        plan, said = self._plan, "at full speed" if rate is None else f"at {rate:,.0f} updates/s"
        share = None if rate is None else rate / plan.adders
        roles = [
            AdderRole(self._system, self._workload, plan.threads, FIRST_SEED + number, rate=share)
            for number in range(plan.adders)
        ]
        with BenchCrew(roles) as adding:
            self._told(f"live, {said}: warm-up")
            self._once(adding, plan.warm_up)
            rounds = []
            for number in range(plan.repetitions):
                self._told(f"live, {said}: repetition {number + 1} of {plan.repetitions}")
                rounds.append(self._once(adding, plan.seconds))
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
        )

    def _once(self, adding: BenchCrew, seconds: float) -> tuple[float, float, list[float]]:
        """Updates per second added, and done, and the latencies in ascending order."""
        begin = adding.start(seconds)
        self._probing.start(seconds, begin)
        results = adding.results()
        added = sum(each.updates for each in results)
        self._system.wait_until_done()
        ended = machine.monotonic()
        (latencies,) = self._probing.results()
        self._updates += added + len(latencies)
        self._system.wait_until_done()  # the last probes, too
        check(self._system, self._updates)
        last = max(each.ended for each in results)
        return added / (last - begin), added / (ended - begin), sorted(latencies)


class LiveWorkerRole:
    """A process that combines until it is ended."""

    def __init__(self, system: QueueSystem) -> None:
        self._system = system

    def prepare(self) -> None:
        self._worker = RunningWorker(self._system)

    def run(self, begin: float, end: float) -> None:
        """It does so by itself."""

    def close(self) -> None:
        self._worker.close()
        close_opened()


class ProberRole:
    """A process that adds an update of a new key every `PROBE_SECONDS`, and takes the time until it is combined."""

    def __init__(self, system: QueueSystem) -> None:
        self._system = system

    def prepare(self) -> None:
        self._db = self._system.open()
        self._queue = cq.CombineQueue(self._system.queue)
        config = transact(self._db, lambda tr: read_config(tr.snapshot, self._system.queue))
        self._encode = config.key.encoder()
        self._update = KINDS[self._system.kind](1)
        self._number = 0

    def run(self, begin: float, end: float) -> list[float]:
        """The seconds that each probe took; raises `CannotMeasure` when one takes very long."""
        probes = []
        due = begin
        while due < end:
            machine.sleep(max(0.0, due - machine.monotonic()))
            probes.append(self._probe())
            due = max(due + PROBE_SECONDS, machine.monotonic())
        deadline = machine.monotonic() + _REPORT_SECONDS
        return [probe.seconds(deadline) for probe in probes]

    def _probe(self) -> _Probe:
        key, self._number = f"probe {self._number}", self._number + 1
        value = QueueKeys(self._system.queue).value(self._encode(key))
        watch = transact(self._db, lambda tr: tr.watch(value))
        probe = _Probe(watch)
        transact(self._db, lambda tr: self._queue.add(tr, {key: self._update}))
        probe.committed = machine.monotonic()
        return probe

    def close(self) -> None:
        close_opened()


class _Probe:
    """When an update was committed, and when its key's value changed."""

    def __init__(self, watch: Any) -> None:
        self.committed = 0.0
        self._changed = 0.0
        self._fired = threading.Event()
        self._watch = watch  # it lives as long as somebody holds it
        watch.on_ready(self._note)

    def _note(self, watch: Any) -> None:
        self._changed = machine.monotonic()
        self._fired.set()

    def seconds(self, deadline: float) -> float:
        """From the end of the commit to the change, once that has come."""
        if not self._fired.wait(max(0.0, deadline - machine.monotonic())):
            raise CannotMeasure(
                f"an update was not combined within {_REPORT_SECONDS:.0f} s: is a worker running?"
            )
        self._watch.wait()  # raises what has become of it, if that was no change
        return max(0.0, self._changed - self.committed)
