"""Keys and values as JSON and as words: there and back again, and one clear error for what is neither."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.encoding.codec import KeyType, ValueType
from cq.encoding.json_values import (
    key_from_json,
    key_from_word,
    split_word,
    to_json,
    value_from_json,
    value_from_word,
)
from cq.errors import InvalidData

PARTS: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(st.characters(codec="utf-8")),
    "int": st.integers(),
    "bytes": st.binary(),
}
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **PARTS,
    "float": st.floats(allow_nan=False),
    "decimal": st.decimals(allow_nan=False),
    "bool": st.booleans(),
    "list": st.lists(JSON),
    "dict": st.dictionaries(st.text(), JSON),
    "set": st.sets(st.integers() | st.tuples(st.integers(), st.text())),
    "datetime": st.datetimes(timezones=st.just(UTC)),
}


@given(st.data())
def test_keys_come_back_from_json(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3))
    if len(names) == 1 and data.draw(st.booleans()):
        key_type, key = KeyType.parse(names[0]), data.draw(PARTS[names[0]])
    else:
        key_type, key = KeyType(tuple(names), True), tuple(data.draw(PARTS[name]) for name in names)

    shown = json.loads(json.dumps(to_json(key)))

    assert key_from_json(key_type, shown) == key


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_values_come_back_from_json(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])

    shown = json.loads(json.dumps(to_json(value), allow_nan=False))

    back = value_from_json(ValueType(name), shown)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("str", "12", "12"),
        ("int", "12", 12),
        ("decimal", "1.20", Decimal("1.20")),
        ("float", "1", 1.0),
        ("float", "1e400", float("inf")),
        ("bytes", "aGk=", b"hi"),
        ("set", "[1, [2, 3]]", {1, (2, 3)}),
        ("set", "[[1, [2, []]]]", {(1, (2, ()))}),
        ("any", '{"a": null}', {"a": None}),
    ],
)
def test_words_are_read_by_their_type(name: str, word: str, value: object) -> None:
    assert value_from_word(ValueType(name), word) == value


@pytest.mark.parametrize(
    ("key_type", "word", "key"),
    [
        (str, "12", "12"),
        (int, "12", 12),
        (bytes, "aGk=", b"hi"),
        ((str, int, bytes), '["a", 1, "aGk="]', ("a", 1, b"hi")),
    ],
)
def test_keys_are_read_by_their_type(key_type: object, word: str, key: object) -> None:
    assert key_from_word(KeyType.parse(key_type), word) == key


def nested(levels: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bytes", "no base64"),
        ("bytes", 1),
        ("decimal", "x"),
        ("datetime", "yesterday"),
        ("datetime", 5),
        ("set", 5),
        ("set", [{"a": 1}]),
        ("set", "text"),
        ("set", {"a": 1}),
        ("set", nested(5_000)),
        ("float", "x"),
        ("float", [1]),
        ("float", 10**400),
    ],
)
def test_json_of_another_type_is_refused(name: str, given: object) -> None:
    with pytest.raises(InvalidData, match=f"expected JSON of a {name}, got: "):
        value_from_json(ValueType(name), given)


@pytest.mark.parametrize("word", ["", "1,5", "1E9999999999999999999"])
def test_a_decimal_that_is_none_is_named_in_words(word: str) -> None:
    with pytest.raises(InvalidData, match=r"\(not a number that a Decimal can hold\)"):
        value_from_word(ValueType("decimal"), word)


@pytest.mark.parametrize("word", ["", "x", "'a'", "[" * 100_000, "1" * 5000])
def test_words_that_are_no_json_are_refused_in_short(word: str) -> None:
    with pytest.raises(InvalidData, match="expected a key of type int, got: ") as refused:
        key_from_word(KeyType.parse(int), word)

    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("name", "word", "pair"),
    [
        ("int", "a=1", ("a", "1")),
        ("int", "a=b=1", ("a=b", "1")),
        ("int", "=1", ("", "1")),
        ("str", "a=", ("a", "")),
        ("bytes", "aA===YQ==", ("aA==", "YQ==")),
        ("bytes", "a=YWJj", ("a", "YWJj")),
    ],
)
def test_pairs_are_split_at_the_last_equals_sign(name: str, word: str, pair: tuple[str, str]) -> None:
    assert split_word(ValueType(name), word) == pair


@pytest.mark.parametrize(("name", "word"), [("int", "a"), ("bytes", "a="), ("int", "")])
def test_a_word_without_an_equals_sign_is_no_pair(name: str, word: str) -> None:
    with pytest.raises(InvalidData, match="expected KEY=UPDATE"):
        split_word(ValueType(name), word)


@pytest.mark.parametrize(
    "value",
    [date(2026, 1, 2), UUID(int=7), Fraction(1, 3), float("nan"), float("-inf"), {1: {(2, b"x"): {3}}}, frozenset()],
    ids=repr,
)  # fmt: skip
def test_whatever_a_queue_of_any_holds_can_be_printed(value: object) -> None:
    json.dumps(to_json(value), allow_nan=False)


@given(JSON)
def test_what_is_json_already_stays_as_it_is(value: Any) -> None:
    assert to_json(value) == value


def test_no_key_of_a_dict_is_lost_that_has_the_text_of_another() -> None:
    assert to_json({1: "int", "1": "str", "1 (int)": "longer", 2: "other"}) == {
        "1": "str",
        "1 (int)": "longer",
        "1 (int) (int)": "int",
        "2": "other",
    }
    assert to_json({(b"a",): 1, ("YQ==",): 2}) == {"['YQ==']": 1, "['YQ=='] (tuple)": 2}


def test_a_moment_keeps_its_zone() -> None:
    moment = datetime.fromisoformat("2026-01-02T03:04:05+02:00")

    assert to_json(moment) == "2026-01-02T03:04:05+02:00"
