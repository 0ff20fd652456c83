"""Scores and keys as bytes: they sort as the numbers and the keys do."""

from __future__ import annotations

import math
from decimal import Decimal, FloatOperation, localcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cq.encoding.codec import KeyType
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.observers.top.scores import SCORE_BYTES, ascending, descending
from cq.observers.top.sort_keys import from_sort_key, to_sort_key
from cq.observers.top.weights import weights

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-1000, 1000),
    st.integers(-(10**18) - 5, -(10**18) + 5),
    st.integers(10**18 - 5, 10**18 + 5),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.builds(
        lambda digits, exponent: Decimal(digits).scaleb(exponent),
        st.integers(-(10**12), 10**12),
        st.integers(-9000, 9000),
    ),
)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.text("\x00\x01\xff", max_size=4),
    "int": st.integers(),
    "bytes": st.binary(max_size=5) | st.lists(st.sampled_from([0, 1, 255]), max_size=4).map(bytes),
}


def order(one: Any, other: Any) -> int:
    """-1, 0 or 1: of numbers of different types, as exact ones."""
    return int(one > other) - int(one < other)


@given(NUMBERS, NUMBERS)
@example(0.1, Decimal("0.1"))
@example(1, 1.0)
@example(-0.0, 0)
@example(99, 100)
@example(Decimal("9.9"), 10)
@example(-9, Decimal("-9.9"))
@example(5e-324, 0)
@example(1.7976931348623157e308, math.inf)
@example(2**53, 2.0**53 + 2)
def test_bytes_sort_as_the_numbers_do(one: Any, other: Any) -> None:
    assert order(ascending(one), ascending(other)) == order(one, other)
    assert order(descending(other), descending(one)) == order(one, other)


@given(NUMBERS, NUMBERS)
def test_no_encoding_begins_with_another(one: Any, other: Any) -> None:
    """So keys may follow a score, and a score is a path in a trie."""
    if one != other:
        assert not ascending(one).startswith(ascending(other))


@given(st.floats(allow_nan=False))
@example(5e-324)
@example(2.2250738585072011e-308)
def test_every_float_fits(number: float) -> None:
    assert len(ascending(number)) <= SCORE_BYTES


def test_numbers_of_few_digits_may_be_as_large_or_small_as_they_like() -> None:
    for number in (10**5000, -(10**5000), Decimal("1E+999999"), Decimal("-1E-999999")):
        assert len(ascending(number)) <= 20


def test_numbers_take_up_to_780_digits() -> None:
    for number in (10**780 - 1, Decimal("1." + "1" * 779)):
        assert len(ascending(number)) <= SCORE_BYTES
    for number in (10**780 + 1, 10**5000 + 1, Decimal("1" * 5000)):
        with pytest.raises(TooLarge, match="significant digits"):
            ascending(number)


def test_counts_take_few_bytes() -> None:
    assert [len(ascending(count)) for count in (0, 7, 12, 1234, 1_000_000, 999_999)] == [1, 3, 3, 4, 3, 5]


@pytest.mark.parametrize(
    "score", [math.nan, Decimal("NaN"), Decimal("sNaN"), Decimal("-NaN"), True, "1", b"1", None, 1j, [1]]
)
def test_what_has_no_place_in_the_order_is_refused(score: Any) -> None:
    with pytest.raises(InvalidData, match="expected a score"):
        ascending(score)


def test_floats_have_places_and_weights_where_decimals_of_floats_are_errors() -> None:
    with localcontext() as context:
        context.traps[FloatOperation] = True
        assert ascending(0.5) == ascending(Decimal("0.5"))
        assert weights([0.5, 2.0, math.inf]) == [1, 9, 9]


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3), st.booleans(), st.data())
def test_sort_keys_sort_as_the_keys_do_and_lead_back(
    names: list[str], is_tuple: bool, data: st.DataObject
) -> None:
    key_type = KeyType(tuple(names), True) if is_tuple else KeyType((names[0],), False)
    keys = st.tuples(*(PARTS[name] for name in names)) if is_tuple else PARTS[names[0]]
    one, other = data.draw(keys), data.draw(keys)

    assert order(to_sort_key(key_type, one), to_sort_key(key_type, other)) == order(one, other)
    assert from_sort_key(key_type, to_sort_key(key_type, one)) == one


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        ("int", b""),
        ("int", b"\x80"),
        ("int", b"\x80\x02\x01"),
        ("str", b"\xff"),
        ("(str, int)", b"a"),
        ("(int, int)", b"\x80\x00"),
    ],
)
def test_bytes_that_are_no_sort_key_are_refused(spec: str, data: bytes) -> None:
    with pytest.raises(CorruptData):
        from_sort_key(KeyType.parse(spec), data)
