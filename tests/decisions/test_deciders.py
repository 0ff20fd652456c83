"""The built-in deciders: what holds after any requests, and workers without code of an application."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import deciders
from cq.config.decider import DeciderConfig
from cq.deciders import clamped, clamped_value
from cq.errors import CodeMismatch, DecisionFailed, InvalidConfiguration
from cq.testing import assert_values, drain
from tests.kit.clocks import Clock

AMOUNTS = st.lists(st.integers(-9, 9), max_size=30)


def decided(decider: cq.Decider, requests: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The states and the answers of requests of a new key."""
    states, answers, state = [], [], None
    for request in requests:
        state, answer = decider.decide("key", state, request)
        states.append(state)
        answers.append(answer)
    return states, answers


@given(AMOUNTS, st.integers(-5, 0), st.integers(0, 5), st.booleans())
def test_a_bounded_number_stays_within_its_bounds(amounts: list[int], lo: int, hi: int, clamp: bool) -> None:
    states, answers = decided(deciders.bounded(lo, hi, clamp=clamp), amounts)
    assert all(lo <= state <= hi for state in states)
    assert sum(answers) == (states or [0])[-1]
    for amount, applied in zip(amounts, answers, strict=True):
        assert applied in (0, amount) or (clamp and abs(applied) < abs(amount) and applied * amount > 0)


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_outside_of_changed_bounds_comes_nearer_to_them(clamp: bool, sign: int) -> None:
    decide = deciders.bounded(-5, 5, clamp=clamp).decide
    assert decide("key", sign * 9, -sign) == (sign * 8, -sign)
    assert decide("key", sign * 9, sign) == (sign * 9, 0)
    assert decide("key", sign * 9, -sign * 20) == ((-sign * 5, -sign * 14) if clamp else (sign * 9, 0))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=30))
def test_a_name_has_one_owner(steps: list[tuple[bool, str]]) -> None:
    requests = [deciders.claim(who) if claims else deciders.release_name(who) for claims, who in steps]
    states, answers = decided(deciders.unique(), requests)
    owner = None
    for (claims, who), state, answer in zip(steps, states, answers, strict=True):
        if claims:
            owner = owner or who
            assert answer == (owner == who)
        else:
            assert answer == (owner == who)
            owner = None if owner == who else owner
        assert state == owner


@given(st.lists(st.tuples(st.integers(1, 10), st.floats(-1, 3)), max_size=40))
def test_a_bucket_gives_no_more_than_its_rate(steps: list[tuple[int, float]]) -> None:
    at, requests = 1000.0, list[dict[str, float]]()
    for tokens, seconds in steps:
        at += seconds
        requests.append({"take": tokens, "at": at})
    _, answers = decided(deciders.bucket(10, 2.0), requests)
    # An earlier time counts as the latest one.
    times = list(accumulate((each["at"] for each in requests), max))
    taken = [
        (time, each["take"])
        for time, each, answer in zip(times, requests, answers, strict=True)
        if answer == 0
    ]
    for first, (begin, _) in enumerate(taken):
        total = 0.0
        for end, amount in taken[first:]:
            total += amount
            assert total <= 10 + 2.0 * (end - begin) + 1e-6


def test_a_bucket_says_when_there_are_enough_tokens() -> None:
    states, answers = decided(
        deciders.bucket(10, 2.0),
        [{"take": 8, "at": 5.0}, {"take": 8, "at": 5.0}, {"take": 8, "at": 8.0}, {"take": 1, "at": 1.0}],
    )
    assert answers == [0, 3.0, 0, 0.5]
    assert states[-1] == [0.0, 8.0]


BUDGET = st.one_of(
    st.tuples(st.just("reserve"), st.integers(-1, 60), st.sampled_from("hij"), st.integers(1, 5)),
    st.tuples(st.just("settle"), st.sampled_from("hij"), st.integers(0, 80)),
    st.tuples(st.just("release"), st.sampled_from("hij")),
    st.tuples(st.just("raise_cap"), st.integers(-50, 50)),
)


@given(st.lists(st.tuples(BUDGET, st.integers(0, 3)), max_size=40))
def test_a_budget_is_never_above_its_cap_and_no_hold_outlives_its_ttl(steps: list[Any]) -> None:
    at, requests = 100.0, []
    for (kind, *parts), seconds in steps:
        at += seconds
        fields = {
            "reserve": ("reserve", "hold", "ttl"),
            "settle": ("settle", "actual"),
            "release": ("release",),
            "raise_cap": ("raise_cap",),
        }[kind]
        requests.append(dict(zip(fields, parts, strict=True)) | {"at": at})
    states, answers = decided(deciders.budget(100), requests)
    spent = 0
    for request, state, answer in zip(requests, states, answers, strict=True):
        spent += answer.get("charged", 0)
        assert state["spent"] == spent
        reserved = sum(amount for amount, _ in state["holds"].values())
        assert 0 <= answer["free"] == state["cap"] - spent - reserved
        assert all(request["at"] < until <= request["at"] + 5 for _, until in state["holds"].values())


def test_a_budget_as_its_users_see_it(db: Any, name: str, clock: Clock) -> None:
    queue = cq.configure(db, name, key=str, value=dict, decider=deciders.budget(100))

    def ask(request: dict[str, Any]) -> Any:
        ticket = cq.transact(db, lambda tr: queue.ask(tr, "team", request))
        drain(db, name)  # without code of an application
        return queue.answer(db, ticket, 0)

    assert ask(deciders.reserve(60, "call 1", ttl=5)) == {"ok": True, "free": 40}
    assert ask(deciders.reserve(60, "call 2", ttl=5)) == {"ok": False, "free": 40}
    assert ask(deciders.settle("call 1", 25)) == {"ok": True, "charged": 25, "free": 75}
    assert ask(deciders.reserve(70, "call 3", ttl=5))["ok"]
    clock.now += 6
    assert ask(deciders.reserve(70, "call 4", ttl=5)) == {"ok": True, "free": 5}
    assert ask(deciders.release("call 3")) == {"ok": False, "free": 5}
    assert ask(deciders.raise_cap(10)) == {"ok": True, "free": 15}
    with pytest.raises(DecisionFailed, match=r"a request that a function of cq.deciders makes"):
        ask({"spend": 1, "at": 0})
    with pytest.raises(DecisionFailed, match="a hold for more than 0 s"):
        ask(deciders.reserve(1, "call 5", ttl=-1))


@given(AMOUNTS, st.integers(-5, 0), st.integers(0, 5), st.data())
def test_a_clamped_sum_does_not_depend_on_how_updates_are_grouped(
    amounts: list[int], lo: int, hi: int, data: st.DataObject
) -> None:
    combiner, expected, values = clamped(lo, hi), 0, list[Any](amounts)
    for amount in amounts:
        expected = min(max(expected + amount, lo), hi)
    while len(values) > 1:
        first = data.draw(st.integers(0, len(values) - 2))
        last = data.draw(st.integers(first + 2, len(values)))
        values[first:last] = [combiner.combine("key", values[first:last])]
    found = combiner.combine("key", values) if values else None
    assert clamped_value(found) == expected


def test_a_clamped_sum_takes_a_number_larger_than_any_float() -> None:
    assert clamped_value(clamped(0, 10).combine("key", [10**400, -3])) == 7


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"claim": True},
        {"claim": 1.5},
        {"claim": "ann", "release": "ann"},
        {"release": "ann", "at": 0},
        "ann",
    ],
)
def test_a_name_takes_no_other_requests(request_: Any) -> None:
    with pytest.raises(cq.InvalidData, match=r"a request that a function of cq.deciders makes"):
        deciders.unique().decide("name", 1, request_)


def test_a_decider_with_an_observer_needs_its_application(db: Any, name: str) -> None:
    plain = deciders.bounded(0, 10)
    observed = cq.Decider(
        plain.name, plain.version, plain.decide, settings=plain.settings, observer=lambda tr, decisions: None
    )
    queue = cq.configure(db, name, key=str, value=int, decider=observed)
    cq.transact(db, lambda tr: queue.ask(tr, "a", 3))
    with pytest.raises(CodeMismatch, match="asks for the decider"):
        drain(db, name)
    cq.configure(db, name, decider=plain, key="str")
    drain(db, name)
    assert_values(db, queue, {"a": 3})
    assert DeciderConfig.of(plain).is_built_in


@pytest.mark.parametrize(
    "make",
    [
        lambda: deciders.bounded(5, 1),
        lambda: deciders.bounded(1, 5),
        lambda: deciders.bucket(0, 1),
        lambda: deciders.budget(-1),
        lambda: clamped(2, 1),
    ],
)
def test_impossible_settings_are_refused(make: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="expected"):
        make()
