"""The top and its cloud in a queue that is worked on: kept by passes, built from what is there, published."""

from __future__ import annotations

from typing import Any

import cq
from cq.keys import QueueKeys
from cq.observers.builtin import observer_parts
from cq.observers.top.cloud import CloudReader
from cq.observers.top.index import LAST_PART, top
from cq.observers.top.ranking import Ranking
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.kit.queues import add, aside, configured, nothing_queued
from tests.kit.workers import running

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


def test_clouds_of_a_top_with_functions_are_published(db: Any, name: str) -> None:
    app = cq.App()
    settings: dict[str, Any] = {"score": lambda key, value: -value, "group": lambda key, value: key[0]}
    app.queue(name, observers=[top(2, every=0, **settings)])
    app.configure(db, name)
    add(db, name, {"aa": 1, "ab": 2, "ac": 3, "ba": 4})
    Worker(db, app, [name]).drain()

    clouds = [transact(db, CloudReader(name, group).read).entries for group in "ab"]
    assert [[(key, score) for key, score, _ in entries] for entries in clouds] == [
        [("aa", -1), ("ab", -2)],
        [("ba", -4)],
    ]


def test_an_observer_of_an_application_that_is_named_as_a_top_publishes_nothing(db: Any, name: str) -> None:
    app = cq.App()
    app.queue(name, observers=[cq.Observer("top", 1, lambda tr, changes: None)])
    app.configure(db, name)

    assert list(observer_parts(db, configured(db, name))) == []


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
