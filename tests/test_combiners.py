"""Combiners associate, and `changes` turns one dict of counts into another."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact, localcontext
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq import combiners
from cq.combiners import BUILT_IN, counter, sum_
from cq.encoding.codec import DELETE, MAX_UPDATE_BYTES, encode
from cq.encoding.sketches import Sketch
from cq.errors import InvalidConfiguration, InvalidData
from tests.kit.sketches import needs_sketches

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sum": st.integers(),
    "minimum": st.integers(),
    "maximum": st.text(),
    "last": st.one_of(st.integers(), st.just(DELETE)),
    "first": st.integers(),
    "union": st.sets(st.integers(0, 9)),
    "counter": st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3)),
    "intervals": st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 3)).map(
            lambda drawn: [drawn[0], drawn[0] + drawn[1], drawn[2]]
        ),
        max_size=3,
    ),
    "decaying": st.floats(-1e6, 1e6),
    "distinct": st.one_of(st.text(), st.integers(0, 9), st.lists(st.floats()), st.sets(st.text())),
    "quantiles": st.one_of(st.integers(0, 9), st.lists(st.floats(0, 1))),
    "frequent": st.one_of(st.sampled_from("abc"), st.lists(st.text(max_size=60))),  # at most 256 bytes
    "theta": st.one_of(st.text(), st.integers(0, 9), st.lists(st.floats()), st.sets(st.text())),
}


def built_in(*, has_difference: bool = False) -> list[Any]:
    """Parameters: the names of built-in combiners."""
    return [
        pytest.param(name, marks=[needs_sketches] * (name in ("distinct", "quantiles", "theta")))
        for name, each in BUILT_IN.items()
        if each.difference or not has_difference
    ]


def final(name: str, value: Any) -> Any:
    """The value as a reader sees it."""
    return None if BUILT_IN[name].is_empty(value) else value


def numbers(value: Any) -> Any:
    """A value, or the numbers of a sketch: with few items, they do not depend on how updates are grouped."""
    return value.figures() if isinstance(value, Sketch) else value


@pytest.mark.parametrize("name", built_in())
@given(data=st.data())
def test_built_in_combiners_associate(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[name], min_size=2, max_size=8))
    cut = data.draw(st.integers(1, len(values) - 1))
    combine = BUILT_IN[name].combine

    at_once = combine("k", values)
    in_two = combine("k", [combine("k", values[:cut]), combine("k", values[cut:])])
    last_first = combine("k", [*values[:cut], combine("k", values[cut:])])
    found = [numbers(final(name, each)) for each in (at_once, in_two, last_first)]
    expected = pytest.approx(found[0], abs=1e-12) if name == "decaying" else found[0]
    assert found[1] == expected
    assert found[2] == expected
    assert at_once is not None


NAN = float("nan")


@pytest.mark.parametrize(
    "pool", [[NAN, -1.0, 0.0, 1.0], [[NAN], [0.0, NAN], [0.0], [1.0]], [{1, 2}, {3}, {1}]]
)
@pytest.mark.parametrize("name", ["minimum", "maximum"])
def test_extremes_associate_over_stored_values_without_an_order(name: str, pool: list[Any]) -> None:
    """Earlier versions stored NaN and sets, which the queue refuses now."""
    combiner = BUILT_IN[name]
    combine = partial(combiner.combine, "k")
    for first, second, third in product(pool, repeat=3):
        at_once = repr(combine([first, second, third]))
        assert repr(combine([combine([first, second]), third])) == at_once
        assert repr(combine([first, combine([second, third])])) == at_once
        assert repr(combiners.combine_many(combiner, ["k"], [[first, second, third]])) == f"[{at_once}]"


@pytest.mark.parametrize("member", [NAN, Decimal("NaN"), ("a", NAN), frozenset({("a", NAN)})], ids=repr)
def test_members_that_do_not_equal_themselves_are_refused(member: Any) -> None:
    for name, wrong in (("union", {1, member}), ("counter", {"a": 1, member: 1})):
        with pytest.raises(InvalidData, match=f"without NaN.* for the combiner '{name}'"):
            combiners.check_combinable(name, 1, wrong)
    other = {
        1,
        1.5,
        Decimal(2),
        ("a", None),
        frozenset({b""}),
        float("inf"),
        datetime(2026, 1, 1, tzinfo=UTC),
    }
    combiners.check_combinable("union", 1, other)
    combiners.check_combinable("counter", 1, dict.fromkeys(other, 1))


@pytest.mark.parametrize("name", built_in())
@given(data=st.data())
def test_many_keys_are_combined_as_each_is(name: str, data: st.DataObject) -> None:
    numbers = st.one_of(st.integers(), DECIMALS, st.floats(allow_nan=False))
    values: st.SearchStrategy[Any] = numbers if name == "sum" else VALUES[name]
    lists: list[list[Any]] = data.draw(st.lists(st.lists(values, min_size=1, max_size=4), max_size=6))
    combiner, keys = BUILT_IN[name], list(range(len(lists)))
    try:
        expected = [combiner.combine(key, each) for key, each in zip(keys, lists, strict=True)]
    except (InvalidData, TypeError) as error:
        with pytest.raises(type(error)):
            combiners.combine_many(combiner, keys, lists)
    else:
        assert repr(combiners.combine_many(combiner, keys, lists)) == repr(expected)


def test_sums_of_many_keys_do_not_depend_on_a_context() -> None:
    with localcontext(Context(prec=3, traps=[Inexact])):
        lists: list[list[Any]] = [[Decimal("1.234"), Decimal("5.678")], [1, 2]]
        assert combiners.combine_many(sum_, ["a", "b"], lists) == [Decimal("6.912"), 3]


def test_a_combiner_that_returns_none_is_told_with_its_key() -> None:
    with pytest.raises(InvalidData, match="'last' returned None for the key 'b'"):  # of a row that is damaged
        combiners.combine_many(BUILT_IN["last"], ["a", "b"], [[1], [2, None]])
    nothing = combiners.Combiner("nothing", 1, lambda key, values: None if key == "b" else values[0])
    with pytest.raises(InvalidData, match="'nothing' returned None for the key 'b'"):
        combiners.combine_many(nothing, ["a", "b"], [[1], [2]])


@pytest.mark.parametrize("name", ["union", "counter"])
@given(data=st.data())
def test_combiners_leave_their_arguments_alone(name: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[name], min_size=1, max_size=4))
    before = repr(values)

    BUILT_IN[name].combine("k", values)

    assert repr(values) == before


@pytest.mark.parametrize("name", built_in(has_difference=True))
@given(data=st.data())
def test_a_difference_changes_old_into_new_wherever_old_is_included(name: str, data: st.DataObject) -> None:
    combiner, values = BUILT_IN[name], data.draw(st.lists(VALUES[name], min_size=1, max_size=4))
    others = data.draw(st.lists(VALUES[name], max_size=2))
    cut = data.draw(st.integers(0, len(values) - 1))
    old = final(name, combiner.combine("k", values[:cut])) if cut else None
    new = final(name, combiner.combine("k", values))
    assert combiner.difference
    update = combiner.difference(new, old)
    parts = [*others, *([] if old is None else [old]), *([] if update is None else [update])]
    expected = [*others, *([] if new is None else [new])]
    combined = [final(name, combiner.combine("k", each)) if each else None for each in (parts, expected)]
    assert combined[0] == combined[1]


@pytest.mark.parametrize("name", ["union", "counter"])
@pytest.mark.parametrize("large", [False, True])
def test_a_difference_comes_in_parts_that_a_queue_takes(name: str, large: bool) -> None:
    """Also if it is as large as two values: of one that replaces all items of another."""
    number = 2_400 if large else 2
    items = [[f"{kind}{item:034}" for item in range(number)] for kind in "ab"]
    values: list[Any] = [set(each) if name == "union" else dict.fromkeys(each, 1) for each in items]
    combiner, (old, new) = BUILT_IN[name], values

    parts = combiners.updates_between(combiner, new, old)

    assert len(parts) > 1 if large and name == "counter" else len(parts) == 1
    assert all(len(encode(part)) <= MAX_UPDATE_BYTES for part in parts)
    assert combiner.combine("k", [old, *parts]) == (old | new if name == "union" else new)
    assert combiners.updates_between(combiner, new, new) == []
    assert combiner.combine("k", combiners.updates_between(combiner, new, None)) == new


def test_one_item_is_not_divided() -> None:
    item = {"x" * 95_000}
    assert combiners.updates_between(BUILT_IN["union"], item, None) == [item]


def test_a_difference_of_decimals_is_exact() -> None:
    assert sum_.difference
    with localcontext(Context(prec=3, traps=[])):
        assert sum_.difference(Decimal("1000.01"), Decimal("0.02")) == Decimal("999.99")
        assert sum_.difference(None, Decimal("1000.01")) == Decimal("-1000.01")


def test_a_difference_of_counts_of_decimals_is_exact() -> None:
    assert counter.difference
    with localcontext(Context(prec=3, traps=[])):
        changed = counter.difference({"a": Decimal(1)}, {"a": Decimal("1000.01"), "b": Decimal("2000.02")})
        assert changed == {"a": Decimal("-999.01"), "b": Decimal("-2000.02")}


def test_every_built_in_combiner_is_tested() -> None:
    assert VALUES.keys() == BUILT_IN.keys()


@given(st.dictionaries(st.text(), st.integers()), st.dictionaries(st.text(), st.integers()))
def test_changes_turn_one_dict_of_counts_into_another(current: dict[str, int], new: dict[str, int]) -> None:
    result = dict(current)
    for key, update in cq.changes(current, new).items():
        assert update != 0
        result[key] = result.get(key, 0) + update

    assert {k: v for k, v in result.items() if v} == {k: v for k, v in new.items() if v}


def test_changes_refuse_what_is_no_count() -> None:
    with pytest.raises(InvalidData, match="'a'"):
        cq.changes({}, {"a": 1.5})  # type: ignore[dict-item]


def test_an_unknown_combiner_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidConfiguration, match="sum, minimum"):
        combiners.resolve("mean")


@given(st.lists(DECIMALS, min_size=2), st.data())
def test_decimals_add_up_exactly_in_whatever_groups(numbers: list[Decimal], data: st.DataObject) -> None:
    middle = data.draw(st.integers(1, len(numbers) - 1))
    first, rest = sum_.combine("key", numbers[:middle]), sum_.combine("key", numbers[middle:])

    assert sum_.combine("key", [first, rest]) == sum_.combine("key", numbers)
    assert Fraction(sum_.combine("key", numbers)) == sum(map(Fraction, numbers))


@pytest.mark.parametrize("number", ["1E+1000000000", "1E-1000000000", "1E+999999999999999999"])
def test_a_sum_that_takes_too_many_digits_is_an_error(number: str) -> None:
    for combiner, values in ((sum_, [Decimal(number), 1]), (counter, [{"a": Decimal(number)}, {"a": 1}])):
        with pytest.raises(InvalidData, match="more than 10,000 digits"):
            combiner.combine("key", values)
