"""Tops by distinct users, and by scores that decay."""

from __future__ import annotations

from math import inf, isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.combiners import BUILT_IN
from cq.errors import InvalidConfiguration, InvalidData
from cq.observers.distinct import distinct
from cq.observers.top import CloudReader, HalfLife, Ranking, top
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.clocks import set_clock

DAY = 86_400
EVENTS = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 20 * DAY)), min_size=1, max_size=20)


@given(EVENTS, st.integers(0, 30 * DAY))
def test_a_score_is_the_sum_of_all_weights_each_halved_by_half_lives(
    events: list[tuple[int, int]], now: int
) -> None:
    day = HalfLife("1d")

    value = BUILT_IN["decaying"].combine("k", [day.update(weight, at) for weight, at in events])

    expected = sum(weight * 2 ** ((at - now) / DAY) for weight, at in events)
    assert isclose(day.score(value, now), expected, rel_tol=1e-9)


def test_the_top_of_decaying_scores_changes_with_events_alone(db: Any, name: str) -> None:
    queue: cq.CombineQueue[str, float] = cq.configure(
        db, name, value=float, combiner="decaying", observers=[top(3, every=0)]
    )
    day, ranking = HalfLife("1d"), Ranking[str, float](name)
    with set_clock() as clock:
        transact(db, lambda tr: queue.add(tr, [("old", day.update()) for _ in range(10)]))
        drain(db, name)
        clock.now += 3 * DAY  # ten uses are worth 10 / 8
        transact(db, lambda tr: queue.add(tr, {"new": day.update()}))
        drain(db, name)
        first = transact(db, lambda tr: ranking.page(tr, 3)).entries
        transact(db, lambda tr: queue.add(tr, {"new": day.update()}))
        drain(db, name)
        second = transact(db, lambda tr: ranking.page(tr, 3)).entries
        scores = [day.score(entry.score) for entry in second]
        cloud = transact(db, CloudReader(name).read)

    assert [entry.key for entry in first] == ["old", "new"]
    assert [entry.key for entry in second] == ["new", "old"]
    assert scores == pytest.approx([2, 10 / 8])
    assert [(entry.key, entry.weight) for entry in cloud.entries] == [("new", 9), ("old", 1)]


def test_a_cloud_by_distinct_users_counts_each_user_once(db: Any, name: str) -> None:
    users = f"{name}-users"
    cq.configure(db, users, observers=[top(3, every=0)])
    uses: cq.CombineQueue[tuple[str, str], int] = cq.configure(
        db, name, key=(str, str), observers=[distinct(users)]
    )
    transact(db, lambda tr: uses.add(tr, {("a", "ann"): 9, ("b", "ann"): 1, ("b", "bob"): 1}))
    transact(db, lambda tr: uses.add(tr, {("b", "bob"): -1, ("b", "cai"): 1, ("c", "ann"): 1}))
    transact(db, lambda tr: uses.add(tr, {("c", "ann"): -1}))
    drain(db)

    cloud = transact(db, CloudReader(users).read)
    assert [(entry.key, entry.score) for entry in cloud.entries] == [("b", 2), ("a", 1)]


@pytest.mark.parametrize("weight", [0, -1, inf, float("nan"), "1", True])
def test_weights_are_above_zero(weight: Any) -> None:
    with pytest.raises(InvalidData, match="expected a weight above 0"):
        HalfLife("1d").update(weight)


def test_values_are_finite_and_scores_have_no_overflow(db: Any, name: str) -> None:
    queue: cq.CombineQueue[str, float] = cq.configure(db, name, value=float, combiner="decaying")
    for wrong in (inf, -inf, float("nan")):
        with pytest.raises(InvalidData, match="expected a finite float"):
            transact(db, lambda tr: queue.add(tr, {"k": wrong}))  # noqa: B023 - runs at once
    assert HalfLife(1).score(1e9, at=0) == inf
    with pytest.raises(InvalidConfiguration):
        HalfLife(0)
