"""`add_now`: committed when it returns, and counted once whatever its commits answer."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.testing import assert_drained, assert_values, drain
from tests.kit.faults import FaultyDatabase


@pytest.mark.parametrize("once", [None, "event-1"])
def test_updates_are_committed_when_it_returns(db: Any, name: str, once: str | None) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)

    queue.add_now(db, {"a": 1, "b": 2}, once)

    assert cq.transact(db, lambda tr: queue.get(tr, "b", pending=True)) == 2
    drain(db, name)
    assert_values(db, name, {"a": 1, "b": 2})


def test_updates_count_once_after_unknown_results_and_conflicts(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)
    faulty = FaultyDatabase(db, seed=1, conflict=0.2, unknown=0.5)

    for _ in range(30):
        queue.add_now(faulty, {"a": 1})

    assert {"unknown, committed", "unknown, not committed"} <= faulty.injected.keys(), faulty.injected
    drain(db, name)
    assert_values(db, name, {"a": 30})


def test_two_calls_count_twice_and_two_calls_with_one_id_once(db: Any, name: str) -> None:
    cq.configure(db, name)
    queue = cq.CombineQueue[str, int](name)
    for _ in range(2):
        queue.add_now(db, {"a": 1})
        queue.add_now(db, {"b": 1}, once="event-1")
    drain(db, name)

    assert_values(db, name, {"a": 2, "b": 1})


def test_a_refused_update_writes_nothing(db: Any, name: str) -> None:
    cq.configure(db, name)
    with pytest.raises(cq.InvalidData):
        cq.CombineQueue(name).add_now(db, {"a": 1, "b": "c"})
    assert_drained(db, name)
