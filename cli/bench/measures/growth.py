"""The cost of an update as a queue grows: in the number of keys, and in the number of queued updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from cq.cli.bench.measures.crew import BenchCrew
from cq.cli.bench.measures.figures import Figure
from cq.cli.bench.measures.phases import Notify, Plan, check
from cq.cli.bench.measures.roles import AdderRole, AddResult, adding, draining, filling
from cq.cli.bench.systems.system import BACKLOG, KEYS, SPARSE, System
from cq.cli.bench.systems.workload import POOL_UPDATES, BenchWorkload

LEAST: Final = 10_000
COMPARED: Final = 100_000
"""The size whose cost the other costs are compared with."""
UPDATES: Final = 200_000
"""Number of updates over all keys, if keys grow and are updated sparsely."""
EACH: Final = 2
"""Number of updates of each key, if keys grow."""
_ROUNDS: Final = 20  # at most this many sparse updates per key
_FOR_EVER: Final = 1e9
_MICRO: Final = 1e6


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """The cost of an update at one size.

    Attributes:
        system: name of the system.
        what: one of `GROWING`.
        size: number of keys, or of queued updates.
        updates: number of added and drained updates in each repetition.
        add, drain, cost: microseconds per update; `cost` is the sum of both.
    """

    system: str
    what: str
    size: int
    updates: int
    add: Figure
    drain: Figure
    cost: Figure


def measure_growth(
    system: System,
    what: str,
    workload: BenchWorkload,
    plan: Plan,
    most: int,
    notify: Notify = lambda _: None,
) -> list[GrowthResult]:
    """Measure a system at 10^4, 10^5 ... up to `most` keys, or queued updates.

    If keys grow, the updates are spread evenly over all keys: `EACH` updates per key, or `UPDATES` in all. If the
    backlog grows, the updates are those of the workload. The system is created first, and always removed. Raises the
    errors of `phases.measure`.
    """
    with ExitStack() as stack:
        stack.callback(system.remove)
        system.prepare()
        growing = _GrowthRun(system, plan, stack.enter_context(draining(system, plan.workers)))
        if what == BACKLOG:
            notify(f"{system.name}, growth of the backlog: creating the keys")
            growing.fill(workload, workload.keys)
        results = []
        for size in sizes(most):
            notify(f"{system.name}, growth of {what}: {size:,}")
            if what != BACKLOG:
                growing.fill(workload, size)
            updates = {KEYS: EACH * size, SPARSE: min(UPDATES, _ROUNDS * size), BACKLOG: size}[what]
            spread = workload if what == BACKLOG else replace(workload, keys=size, skew=0)
            results.append(growing.measure(what, size, updates, spread))
        return results


def sizes(most: int) -> Iterator[int]:
    """The sizes 10^4, 10^5 ... up to `most`."""
    size = min(LEAST, most)
    while size <= most:
        yield size
        size *= 10


class _GrowthRun:
    """A system with its drainers, and the numbers of its keys and updates."""

    def __init__(self, system: System, plan: Plan, draining: BenchCrew) -> None:
        self._system, self._plan, self._draining = system, plan, draining
        self._keys, self._updates = 0, 0

    def fill(self, workload: BenchWorkload, keys: int) -> None:
        """Add keys until the system has `keys` keys."""
        number = self._plan.adders
        bounds = [self._keys + (keys - self._keys) * place // number for place in range(number + 1)]
        with filling(self._system, workload, [range(*pair) for pair in pairwise(bounds)]) as fillers:
            self._updates += sum(fillers.run()[1])
        self._keys = keys
        self._draining.run()
        check(self._system, self._updates)

    def measure(self, what: str, size: int, updates: int, workload: BenchWorkload) -> GrowthResult:
        """Add `updates` updates and drain them, once per repetition."""
        adds, drains = [], []
        unmeasured = int(updates <= UPDATES)  # a warm-up; in longer runs its effect is too small to matter
        # Large numbers are added in pieces, because a pool of updates must fit into memory.
        pieces = -(-updates // (POOL_UPDATES * self._plan.adders))
        most = max(1, updates // pieces // workload.per_transaction)
        shares = iter((most + place) // self._plan.adders for place in range(self._plan.adders))
        roles = partial(AdderRole, self._system, workload, self._plan.threads)
        with adding(self._plan.adders, lambda seed: roles(seed, most=next(shares))) as adders:
            for _ in range(self._plan.repetitions + unmeasured):
                updates, seconds = 0, 0.0
                for _ in range(pieces):
                    begin, results = adders.run(_FOR_EVER)
                    added = AddResult.of_all(results)
                    updates += added.updates
                    seconds += added.ended - begin
                adds.append(seconds / updates * _MICRO)
                begin, ends = self._draining.run()
                drains.append((max(ends) - begin) / updates * _MICRO)
                self._updates += updates
                self._system.settle()
        check(self._system, self._updates)
        add, drain = Figure(tuple(adds[unmeasured:])), Figure(tuple(drains[unmeasured:]))
        costs = tuple(map(sum, zip(add.values, drain.values, strict=True)))
        return GrowthResult(self._system.name, what, size, updates, add, drain, Figure(costs))
