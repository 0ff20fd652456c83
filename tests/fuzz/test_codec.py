"""Bytes that cq has not written are read or refused, in little time and memory; and what it takes, it gives back."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.encoding import codec
from cq.encoding.codec import KeyType, ValueType
from cq.encoding.json_values import to_json
from cq.errors import CorruptData, InvalidData, TooLarge
from tests.fuzz.inputs import BOMBS, bounded, broken, few, mutated, nested, searched, values

KEY_TYPES = [KeyType.parse(spec) for spec in ("str", "int", "bytes", "(str, int)", "(bytes, str, int)")]
VALUE_TYPES = [
    ValueType.parse(name)
    for name in ("int", "float", "decimal", "str", "bytes", "bool", "list", "dict", "set", "datetime")
] + [ValueType.parse("any")]
REFUSED = [
    "deep lists", "deep endless lists", "deep tags", "deep sets", "deep keys", "deep values",
    "as deep as the decoder goes by itself", "a list that holds itself", "a dict that holds itself",
    "a billion laughs", "a long text, again and again", "a pattern", "a large pattern", "a message",
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_little_time_and_memory(name: str) -> None:
    with bounded():
        try:
            found = codec.decode(BOMBS[name])
        except CorruptData:
            return
        codec.shown(found)
        to_json(found)
        codec.is_same(found, found)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cq_never_writes_is_refused(name: str) -> None:
    with pytest.raises(CorruptData):
        codec.decode(BOMBS[name])


def test_mutated_bytes_are_read_or_refused() -> None:
    real = [
        codec.encode(value)
        for value in (
            [None, b"aa", 1, b"ab", {"x": {1, 2}}],
            Decimal("1.50"),
            datetime.now(UTC),
            ("a", 7, b"x"),
            {"n": [1.5]},
        )
    ]
    for rng in searched(300):
        data = broken(rng.choice(real), rng)
        for read in (codec.decode, *(key_type.decode for key_type in KEY_TYPES)):
            with suppress(CorruptData):
                codec.shown(read(data))


def test_a_key_has_one_spelling() -> None:
    for rng in searched(300):
        key_type, key = rng.choice([(KEY_TYPES[0], "hello"), (KEY_TYPES[1], 500), (KEY_TYPES[3], ("a", 7))])
        encoded = key_type.encoder()(key)
        data = mutated(encoded, rng)
        try:
            found = key_type.decode(data)
        except CorruptData:
            continue
        assert key_type.encoder()(found) == data


@pytest.mark.parametrize("data", ["780161", "616100", "7f6161ff", "d9d9f76161"])
def test_another_spelling_of_a_key_is_refused(data: str) -> None:
    assert cbor2.loads(bytes.fromhex(data)) == "a"
    with pytest.raises(CorruptData, match="not a key of type str"):
        KEY_TYPES[0].decode(bytes.fromhex(data))


@few
@given(values, st.sampled_from(VALUE_TYPES))
def test_what_is_taken_comes_back_as_it_was(value: Any, value_type: ValueType) -> None:
    try:
        value_type.check(value)
        data = codec.encode_value(value)
    except InvalidData:
        return
    found = codec.decode(cbor2.dumps([None, b"key", cbor2.loads(data)]))[2]
    assert codec.encode(found) == codec.encode(codec.decode(data))
    if type(value) in (int, str, bytes, bool, Decimal, datetime):
        assert (type(found), found) == (type(value), value)
    value_type.check(found)
    to_json(found)


@few
@given(values)
def test_a_key_is_taken_or_refused(key: Any) -> None:
    for key_type in KEY_TYPES:
        try:
            encoded = key_type.encoder()(key)
        except InvalidData:
            continue
        assert key_type.decode(encoded) == key


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda inner: [inner], 100_000), (lambda inner: {1: inner}, 100_000), (lambda inner: deque([inner]), 100_000),
        (lambda inner: cbor2.CBORTag(10**9, inner), 2_000),  # Python itself cannot take away many more
    ],
)  # fmt: skip
def test_what_is_nested_too_deep_is_refused_and_does_not_end_the_process(wrap: Any, levels: int) -> None:
    with pytest.raises(InvalidData, match="levels"):
        codec.encode_value(nested(levels, wrap))

    deepest: Any = nested(codec.MAX_DEPTH, wrap)
    assert codec.encode(codec.decode(codec.encode_value(deepest))) == codec.encode(deepest)
    with pytest.raises(InvalidData):
        codec.encode_value(nested(codec.MAX_DEPTH + 1, wrap))


def test_what_repeats_its_parts_is_refused_before_it_is_written_out() -> None:
    doubled: Any = [1]
    for _ in range(60):
        doubled = [doubled, doubled]

    with bounded(), pytest.raises(TooLarge, match="parts"):
        codec.encode_value(doubled)
    with bounded(), pytest.raises(TooLarge, match="parts"):
        codec.encode_value([range(10**12)])


def test_what_holds_itself_is_refused() -> None:
    own: Any = deque()
    own.append([own])

    with pytest.raises(InvalidData):
        codec.encode_value(own)


@pytest.mark.parametrize(
    "value",
    [
        datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1))), Decimal("NaN"), Decimal("sNaN12"),
        Decimal("-Infinity"), cbor2.CBORTag(29, 0), cbor2.CBORTag(35, "a"), [cbor2.CBORTag(4, "x")],
    ],
)  # fmt: skip
def test_what_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(InvalidData, match="gives back"):
        codec.encode_value(value)
