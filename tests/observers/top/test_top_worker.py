"""The top and its cloud in a queue that is worked on: kept by passes, built from what is there, published."""

from __future__ import annotations

import random
import threading
from decimal import Decimal
from typing import Any

import pytest

import cq
from cq.errors import NotReady
from cq.keys import QueueKeys
from cq.observers.builtin import observer_parts
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.ranking import Ranking
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.kit.faults import FaultyDatabase
from tests.kit.queues import add, aside, configured, nothing_queued
from tests.observers.worker.workerhelpers import running

SECONDS = 60.0


def order(db: Any, name: str, **how: Any) -> list[tuple[Any, Any]]:
    return [(entry.key, entry.score) for entry in Ranking(name).scan(db, **how)]


def sort_of_values(db: Any, name: str) -> list[tuple[Any, Any]]:
    return sorted(cq.CombineQueue(name).scan(db), key=lambda item: (-item[1], item[0]))


def wait_for_cloud(db: Any, name: str, expected: list[tuple[Any, Any]]) -> None:
    """Wait until a cloud with these entries is published."""
    version = 0
    while found := CloudReader(name).wait(db, version, SECONDS):
        entries = [(entry.key, entry.score) for entry in found.entries]
        if entries == expected:
            return
        version = found.version
    raise AssertionError(f"the last cloud is {entries}, expected {expected}")


def test_a_top_is_kept_and_published_without_code(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4, observers=[top(3, every=0)])
    with running(Worker(db, queues=[name])):
        add(db, name, {"a": 1, "b": 5, "c": 3, "d": 2})
        wait_for_cloud(db, name, [("b", 5), ("c", 3), ("d", 2)])
        add(db, name, {"b": -5, "a": 7})
        wait_for_cloud(db, name, [("a", 8), ("c", 3), ("d", 2)])

    assert order(db, name) == sort_of_values(db, name) == [("a", 8), ("c", 3), ("d", 2)]


def test_workers_need_no_tasks_for_a_top_by_the_last_part_of_keys(db: Any, name: str) -> None:
    """A role without tasks would be one that the worker leaves alone, as `cq status` says."""
    cq.configure(db, name, key=(str, int), observers=[top(group=LAST_PART)])
    assert list(observer_parts(db, configured(db, name))) == []


def test_several_workers_publish_what_they_combine(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4, observers=[top(3, every=1)])
    with running(Worker(db, queues=[name])), running(Worker(db, queues=[name])):
        for number in range(1, 40):
            add(db, name, {"a": 1, f"b{number}": 1})
        wait_for_cloud(db, name, [("a", 39), ("b1", 1), ("b10", 1)])


def test_a_top_enabled_later_is_built_while_updates_go_on(db: Any, name: str) -> None:
    """Exact once it is read, and read by no one before."""
    cq.configure(db, name, buckets=4)
    add(db, name, {f"k{number}": number + 1 for number in range(300)})
    Worker(db, queues=[name]).drain()

    cq.configure(db, name, buckets=4, observers=[top(ranks=True, every=0)])
    with pytest.raises(NotReady, match="is being built"):
        transact(db, Ranking(name).count)
    stop = threading.Event()

    def update() -> None:
        rng = random.Random(1)
        for _ in range(300):
            if not stop.is_set():
                add(db, name, {f"k{rng.randrange(320)}": rng.randint(-3, 9) for _ in range(3)})

    adding = threading.Thread(target=update)
    adding.start()
    try:
        for _ in range(5):
            Worker(db, queues=[name]).drain()
    finally:
        stop.set()
        adding.join()
    Worker(db, queues=[name]).drain()

    expected = sort_of_values(db, name)
    assert order(db, name) == expected
    for key, score in expected[::40]:
        rank = 1 + sum(other > score for _, other in expected)
        assert transact(db, lambda tr: Ranking(name).rank(tr, key)) == rank  # noqa: B023
    assert transact(db, Ranking(name).count) == len(expected)


def test_other_functions_are_another_generation(db: Any, name: str) -> None:
    def configure(version: int, score: Any) -> cq.App:
        app = cq.App()
        app.queue(name, observers=[top(every=0, score=score, version=version)])
        app.configure(db, name)
        return app

    app = configure(1, lambda key, value: value)
    add(db, name, {"a": 3, "bb": 2, "ccc": 1})
    Worker(db, app, [name]).drain()
    assert order(db, name) == [("a", 3), ("bb", 2), ("ccc", 1)]

    app = configure(2, lambda key, value: len(key) if value > 1 else None)
    assert order(db, name) == [("a", 3), ("bb", 2), ("ccc", 1)]  # until the other is built
    Worker(db, app, [name]).drain()
    Worker(db, app, [name]).drain()

    assert order(db, name) == [("bb", 2), ("a", 1)]
    data = QueueKeys(name)
    assert transact(db, lambda tr: tr.get_range(data.observer_data(1), data.observer_data(2)).to_list()) == []


def test_a_key_without_a_place_in_the_order_is_set_aside(db: Any, name: str) -> None:
    cq.configure(db, name, value=float, observers=[top()], buckets=1)
    add(db, name, {"good": 1.5, "bad": float("nan"), "fine": float("-inf")})
    Worker(db, queues=[name]).drain()

    assert order(db, name) == [("good", 1.5), ("fine", float("-inf"))]
    (found,) = aside(db, name)
    assert "not NaN" in found.error
    assert nothing_queued(db, name)


@pytest.mark.parametrize("seed", range(4))
def test_the_top_is_exact_whatever_fails(db: Any, name: str, seed: int) -> None:
    """Conflicts, expired reads and commits of which nobody knows whether they took place: counts are exact, too."""
    rng = random.Random(seed)
    cq.configure(db, name, value=Decimal, buckets=3, observers=[top(5, every=0, ranks=True)])
    faulty = FaultyDatabase(db, seed)
    for _ in range(12):
        add(db, name, {f"k{rng.randrange(30)}": Decimal(rng.randint(-50, 50)) / 10 for _ in range(8)})
        Worker(faulty, queues=[name]).drain()

    expected = sort_of_values(db, name)
    assert order(db, name) == expected
    assert order(db, name, bottom=True) == expected[::-1]
    assert transact(db, Ranking(name).count) == len(expected)
    for key, score in expected:
        rank = 1 + sum(other > score for _, other in expected)
        assert transact(db, lambda tr: Ranking(name).rank(tr, key)) == rank  # noqa: B023
