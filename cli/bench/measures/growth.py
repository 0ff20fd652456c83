"""The cost of an update as a queue grows: in the number of keys, and in the number of queued updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

from cq.cli.bench.measures.measured_system import (
    BenchCrew,
    Figures,
    MeasuredSystem,
    Notify,
    Result,
    fill,
    measuring,
    medians,
)
from cq.cli.bench.systems.system import POOL_UPDATES, BenchWorkload, Plan, System

LEAST: Final = 10_000
UPDATES: Final = 200_000
"""Number of updates over all keys, if keys grow and are updated sparsely."""
EACH: Final = 2
"""Number of updates of each key, if keys grow."""
_ROUNDS: Final = 20  # at most this many sparse updates per key
_FOR_EVER: Final = 1e9
_MICRO: Final = 1e6


def measure_growth(
    system: System, what: str, workload: BenchWorkload, plan: Plan, most: int, notify: Notify
) -> list[Result]:
    """Measure a system at 10^4, 10^5 ... up to `most` keys, or queued updates: microseconds per update.

    If keys grow, the updates are spread evenly over all keys: `EACH` updates per key, or `UPDATES` in all. If the
    backlog grows, the updates are those of the workload. Raises the errors of `measure`.
    """
    has_keys, keys, results = what == "backlog", 0, []
    with measuring(system, plan, notify, drainers=plan.workers) as run:
        for size in sizes(most):
            notify(f"{system.name}, growth of {what}: {size:,}")
            wanted = workload.keys if has_keys else size
            if wanted > keys:
                _fill(run, workload, keys, wanted)
                keys = wanted
            updates = {"keys": EACH * size, "sparse": min(UPDATES, _ROUNDS * size), "backlog": size}[what]
            spread = workload if has_keys else replace(workload, keys=size, skew=0)
            cost = _measure(run, updates, spread)
            results.append({"system": system.name, "what": what, "size": size, **cost})
    return results


def sizes(most: int) -> Iterator[int]:
    """The sizes 10^4, 10^5 ... up to `most`."""
    size = min(LEAST, most)
    while size <= most:
        yield size
        size *= 10


def _fill(run: MeasuredSystem[System], workload: BenchWorkload, keys: int, wanted: int) -> None:
    """Add keys to the first `keys` ones until there are `wanted` keys."""
    number = run.plan.adders
    bounds = [keys + (wanted - keys) * place // number for place in range(number + 1)]
    roles = [partial(fill, run.system, workload, range(*pair)) for pair in pairwise(bounds)]
    with BenchCrew("filler", roles) as fillers:
        run.updates += sum(fillers.run()[1])
    run.drain()
    run.check()


def _measure(run: MeasuredSystem[System], wanted: int, workload: BenchWorkload) -> Result:
    """Add `wanted` updates and drain them, once per repetition; returns the added updates and the costs of each."""
    unmeasured = int(wanted <= UPDATES)  # a warm-up; in longer runs its effect is too small to matter
    # Large numbers are added in pieces, because a pool of updates must fit into memory.
    pieces = -(-wanted // (POOL_UPDATES * run.plan.adders))
    most = max(1, wanted // pieces // workload.per_transaction)
    rounds: list[Figures] = []
    with run.adders(workload, most=most) as adders:
        for _ in range(run.plan.repetitions + unmeasured):
            added = [run.added(*adders.run(_FOR_EVER)) for _ in range(pieces)]
            updates, seconds = map(sum, zip(*added, strict=True))
            add, drain = seconds / updates * _MICRO, run.drain() / updates * _MICRO
            rounds.append({"add_us": add, "drain_us": drain, "cost_us": add + drain})
            run.system.settle()
    run.check()
    return {"updates": updates, **medians(rounds[unmeasured:])}
