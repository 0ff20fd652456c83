"""Thresholds: each share of a cap is told once for each key and period, whatever is retried."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any, Final

import pytest

import cq
from cq import admin
from cq.deciders import bounded, budget, raise_cap, reserve, settle
from cq.errors import InvalidConfiguration, QueueNotConfigured
from cq.observers.thresholds import thresholds
from cq.testing import assert_drained, assert_values, drain
from cq.windows import Window
from tests.kit.faults import FaultyDatabase

AMOUNTS: Final = (159, 1, 20, -150, 170, 1_000, -1_200, 500)
"""Reach 80 % of 200, fall, reach 100 %, and fall and rise again."""


def watched(db: Any, *parts: type, value: type = int) -> tuple[cq.App, list[tuple[Any, Any, Any]]]:
    """The queue `alarms`, for keys of these parts; returns its application, and the changes that an observer gets."""
    told: list[tuple[Any, Any, Any]] = []

    def note(tr: Any, changes: list[cq.Change]) -> None:
        told.extend((each.key, each.old, each.new) for each in changes)

    app = cq.App()
    app.queue(
        "alarms", key=(*parts, int), value=value, combiner="first", observers=[cq.Observer("note", 1, note)]
    )
    app.configure_all(db)
    return app, told


def test_each_share_is_told_once(db: Any) -> None:
    app, told = watched(db, str)
    spent = cq.configure(db, "spent", key=str, value=int, observers=[thresholds("alarms", cap=200)])
    for amount in AMOUNTS:
        cq.transact(db, lambda tr: spent.add(tr, {"ada": amount, "bob": 1}))  # noqa: B023 - runs at once
        drain(db, app=app)
    assert told == [(("ada", 80), None, 160), (("ada", 100), None, 200)]
    admin.remove_observer(db, "spent", "thresholds")
    admin.put_observer(db, "spent", thresholds("alarms", cap=200, at=(80, 100, 200)))
    drain(db, app=app)
    assert told[2:] == [(("ada", 200), None, 500)]  # told now, as only a later cap has it


def test_it_is_told_once_when_transactions_are_retried(db: Any) -> None:
    faulty = FaultyDatabase(db, 7, conflict=0.2, unknown=0.2)
    app, told = watched(db, str)
    spent = cq.configure(db, "spent", key=str, value=int, observers=[thresholds("alarms", cap=200)])
    for number, amount in enumerate(AMOUNTS):
        cq.transact(faulty, lambda tr: spent.add(tr, {"ada": amount}, once=f"{number}"))  # noqa: B023
        drain(faulty, app=app)
    assert faulty.injected["unknown, committed"]
    assert_values(db, "alarms", {("ada", 80): 160, ("ada", 100): 200})
    # The observer of the test keeps what it was told in tries that did not commit, too.
    assert set(told) == {(("ada", 80), None, 160), (("ada", 100), None, 200)}


def test_a_share_is_told_once_in_each_period(db: Any) -> None:
    app, told = watched(db, str, int, value=Decimal)
    cq.configure(db, "spent", key=str, value=Decimal, rollup={"1d": "forever"})
    spent: Window[str, Decimal] = Window("spent")
    admin.put_observer(db, "spent.1d", thresholds("alarms", cap=1, at=[100]))
    for at in (0, 100, 90_000, 90_100):
        cq.transact(db, lambda tr: spent.add(tr, {"ada": Decimal("0.6")}, at=at))  # noqa: B023
        drain(db, app=app)
    first, second = (("ada", 0, 100), None, Decimal("1.2")), (("ada", 86_400, 100), None, Decimal("1.2"))
    assert told == [first, second]


def test_a_decimal_reaches_a_cap_that_no_float_is_exactly(db: Any) -> None:
    app, _ = watched(db, str, value=Decimal)
    spent = cq.configure(db, "spent", key=str, value=Decimal, observers=[thresholds("alarms", cap=1.1)])
    spent.add_now(db, {"ada": Decimal("1.10"), "bob": Decimal("1.09"), "cy": Decimal("0.87")})
    drain(db, app=app)
    assert_values(
        db,
        "alarms",
        {
            (who, each): value
            for who, each, value in [
                ("ada", 80, Decimal("1.10")),
                ("ada", 100, Decimal("1.10")),
                ("bob", 80, Decimal("1.09")),
            ]
        },
    )


def test_what_is_spent_of_a_budget_counts_beside_its_own_cap(db: Any) -> None:
    app, told = watched(db, str)
    tokens = cq.configure(
        db, "tokens", key=str, value=dict, decider=budget(100), observers=[thresholds("alarms")]
    )
    requests = [
        reserve(90, "a", ttl=60),
        settle("a", 70),
        raise_cap(-20),
        raise_cap(100),
        reserve(50, "b", ttl=60),
    ]
    cq.transact(db, lambda tr: tokens.ask(tr, "bob", raise_cap(-100)))  # nothing is spent of nothing
    for request in [*requests, settle("b", 50), raise_cap(-1_000)]:
        cq.transact(db, lambda tr: tokens.ask(tr, "ada", request))  # noqa: B023
        drain(db, app=app)
    assert told == [(("ada", 80), None, 70), (("ada", 100), None, 120)]


def test_what_does_not_suit_is_refused(db: Any) -> None:
    unfit: list[dict[str, Any]] = [
        {"cap": 0},
        {"cap": float("nan")},
        {"cap": 1, "at": []},
        {"cap": 1, "at": [0.8]},
    ]
    for settings in unfit:
        with pytest.raises(InvalidConfiguration, match="expected a positive cap"):
            thresholds("alarms", **settings)
    cq.configure(db, "spent", key=str, value=int)
    with pytest.raises(QueueNotConfigured):
        admin.put_observer(db, "spent", thresholds("alarms", cap=1))
    cq.configure(db, "alarms", key=(str, int), value=int)
    with pytest.raises(
        InvalidConfiguration, match=r"keys of \(str, int\), the combiner first .* got: .* sum"
    ):
        admin.put_observer(db, "spent", thresholds("alarms", cap=1))
    admin.delete(db, "alarms")
    watched(db, str)
    with pytest.raises(InvalidConfiguration, match="expected a queue of numbers and a cap"):
        admin.put_observer(db, "spent", thresholds("alarms"))
    cq.configure(db, "stock", key=str, value=int, decider=bounded(0, 10))
    admin.put_observer(db, "stock", thresholds("alarms", cap=10))


def test_a_decimal_of_any_size_is_compared_exactly_in_any_context(db: Any) -> None:
    app, _ = watched(db, str, value=Decimal)
    spent = cq.configure(db, "spent", key=str, value=Decimal, observers=[thresholds("alarms", cap=123.45)])
    just_below, huge = Decimal("123.44" + "9" * 40), Decimal("1E+999999")
    spent.add_now(db, {"ada": just_below, "bob": huge})
    with localcontext(prec=3):
        drain(db, app=app)
    assert_drained(db)
    expected = {("ada", 80): just_below, ("bob", 80): huge, ("bob", 100): huge}
    assert_values(db, "alarms", expected)
