"""The promises under load: many threads, injected faults, and the queues' own acceptance test, a tree of queues."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import cq
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from tests.kit.busy import Counting, add_during_passes, in_threads
from tests.kit.faults import FaultyDatabase
from tests.kit.observing import Seen
from tests.kit.queues import add, aside, nothing_queued
from tests.kit.workers import running
from tests.simulation.store import Faults, SimDatabase, Surroundings

SEEDS = range(2)


def faulty(db: Any, seed: int) -> FaultyDatabase:
    return FaultyDatabase(db, seed, conflict=0.1, unknown=0.2)


def simulated(db: Any, seed: int) -> SimDatabase:
    """The database with the simulation's faults, which include other errors of reads and commits."""

    def later(seconds: float, call: Callable[[], object]) -> None:
        raise AssertionError("only simulated watches are told of things later")

    faults = Faults(read_error=0.03, conflict=0.2, unknown=0.2, latency=1e-5)
    return SimDatabase(db, faults, Surroundings(random.Random(seed), time.sleep, later, later))


@pytest.mark.parametrize("with_faults", [faulty, simulated])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_update_counts_exactly_once_whatever_fails(
    db: Any, name: str, seed: int, with_faults: Callable[[Any, int], Any]
) -> None:
    """Adders in several threads with operation ids, workers with tiny limits, faults in all of them."""
    rng = random.Random(seed)
    limits = Limits(read_bytes=rng.choice([100, 2_000, 240_000]), load_bytes=rng.choice([100, 400_000]))
    cq.configure(db, name, buckets=rng.choice([1, 3, 8]))
    queue = cq.CombineQueue(name)
    plans = [
        [{f"k{rng.randrange(10)}": rng.randint(-2, 3) for _ in range(rng.randint(1, 5))} for _ in range(40)]
        for _ in range(3)
    ]
    expected: Counter[str] = Counter()
    for plan in plans:
        for updates in plan:
            expected.update(updates)

    def adder(number: int) -> None:
        store = with_faults(db, seed * 100 + number)
        for turn, updates in enumerate(plans[number]):
            once = f"{number}/{turn}"
            add(store, name, updates, once=once)

    workers = [
        Worker(with_faults(db, seed * 100 + 50 + number), queues=[name], limits=limits) for number in range(2)
    ]
    with running(workers[0]), running(workers[1]):
        in_threads(*(lambda number=number: adder(number) for number in range(3)))
    Worker(db, queues=[name], limits=limits).drain()

    assert dict(queue.scan(db)) == {key: value for key, value in expected.items() if value}, f"seed {seed}"
    assert nothing_queued(db, name)
    assert aside(db, name) == []


def test_neither_adders_nor_passes_ever_conflict_with_adders(db: Any, name: str) -> None:
    """One hot key: the transactions of four adders and a worker are counted, and how many failed."""
    cq.configure(db, name, buckets=1)
    queue = cq.CombineQueue(name)
    adding, working = Counting(db), Counting(db)
    worker = Worker(working, queues=[name])
    with running(worker):
        in_threads(*[partial(add_during_passes, adding, queue, worker, 150)] * 4)
    Worker(working, queues=[name]).drain()

    assert dict(queue.scan(db)) == {"hot": adding.commits}
    assert adding.errors == working.errors == 0


def test_a_tree_of_queues_agrees_at_every_level(db: Any, name: str) -> None:
    """Fluo's acceptance test: seven queues wired as a tree, each fed by the change observers of those above.

    Pairs (x, y) are counted; by x and by y; and so on down to the total. All sums are checked against each other.
    """
    rng = random.Random(0)
    names = {level: f"{name}-{level}" for level in ("xyz", "xy", "yz", "x", "y", "z", "all")}
    wiring: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {
        "xyz": [("xy", lambda key: key[:2]), ("yz", lambda key: key[1:])],
        "xy": [("x", lambda key: (key[0],)), ("y", lambda key: (key[1],))],
        "yz": [("z", lambda key: (key[1],))],
        "x": [("all", lambda key: ("total",))],
    }
    app = cq.App()
    for level, targets in wiring.items():
        app.queue(names[level], observers=[feeder([(names[to], of) for to, of in targets])])
    for level, each in names.items():
        parts = {"xyz": 3, "xy": 2, "yz": 2}.get(level, 1)
        app.configure(db, each, key=(str,) * parts, buckets=rng.choice([1, 3]))

    model: Counter[tuple[str, str, str]] = Counter()
    with running(Worker(FaultyDatabase(db, 0), app, list(names.values()))):
        for _ in range(60):
            updates = {
                (rng.choice("ab"), rng.choice("cde"), rng.choice("fg")): rng.randint(-3, 5) for _ in range(4)
            }
            model.update(updates)
            add(db, names["xyz"], updates)
    Worker(db, app, list(names.values())).drain()

    found = {level: dict(cq.CombineQueue(each).scan(db)) for level, each in names.items()}
    projections: dict[str, Callable[[Any], Any]] = {
        "xyz": lambda key: key,
        "xy": lambda key: key[:2],
        "yz": lambda key: key[1:],
        "x": lambda key: key[:1],
        "y": lambda key: key[1:2],
        "z": lambda key: key[2:],
        "all": lambda key: ("total",),
    }
    for level, project in projections.items():
        sums: Counter[Any] = Counter()
        for key, count in model.items():
            sums[project(key)] += count
        assert found[level] == {key: value for key, value in sums.items() if value}, level


def feeder(targets: list[tuple[str, Callable[[Any], Any]]]) -> cq.Observer:
    """An observer that adds the differences to other queues, under the keys' projections."""

    def feed(tr: Any, changes: list[cq.Change]) -> None:
        for target, project in targets:
            pairs = [(project(change.key), (change.new or 0) - (change.old or 0)) for change in changes]
            cq.CombineQueue(target).add(tr, pairs)

    return cq.Observer("feed", 1, feed)


def test_arrivals_faster_than_a_pass_can_read_are_reported_in_the_end(db: Any, name: str) -> None:
    seen = Seen()
    app = seen.app(name)
    app.configure(db, name, buckets=1)
    queue = cq.CombineQueue(name)
    limits = Limits(read_bytes=300, overload_seconds=0.2)

    def adder() -> None:
        for number in range(100):
            add(db, name, {"hot": 1, f"k{number}": 1, "x" * 100: 1})

    with running(Worker(db, app, [name], limits=limits)):
        in_threads(adder, adder, adder, adder)
    Worker(db, app, [name], limits=limits).drain()

    assert seen.values["hot"] == 400
    assert seen.values == dict(queue.scan(db))
    assert aside(db, name) == []
    assert nothing_queued(db, name)
