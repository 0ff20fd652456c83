"""Keys, values and operation ids: what is taken, what is refused, and what comes back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.encoding import codec
from cq.encoding.cbor import encode_ints, encode_strings, encode_texts
from cq.encoding.codec import KeyType, ValueType
from cq.errors import CorruptData, InvalidConfiguration, InvalidData, TooLarge

PARTS = {"str": st.text(), "int": st.integers(), "bytes": st.binary()}


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4), st.data())
def test_keys_come_back_as_they_were(names: list[str], data: st.DataObject) -> None:
    parts = tuple(data.draw(PARTS[name]) for name in names)
    for spec, key in ((names[0], parts[0]), (f"({', '.join(names)})", parts)):
        key_type = KeyType.parse(spec)

        assert key_type.decode(key_type.encoder()(key)) == key
        assert KeyType.parse(str(key_type)) == key_type


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (str, 1), (str, b"a"), (str, None), (int, True), (int, 1.0), (int, "1"), (bytes, "a"), ((str, int), ("a",)),
        ((str, int), ["a", 1]), ((str, int), ("a", True)), ((str, int), ("a", 1, 2)), (str, "\ud800"),
    ],
)  # fmt: skip
def test_a_key_of_another_type_is_refused(spec: object, key: object) -> None:
    with pytest.raises(InvalidData):
        KeyType.parse(spec).encoder()(key)


@given(st.lists(st.text(max_size=300)), st.lists(st.binary(max_size=300)), st.lists(st.integers()))
def test_simple_items_are_encoded_as_the_encoder_does(
    texts: list[str], strings: list[bytes], numbers: list[int]
) -> None:
    numbers += [sign * (1 << bits) + by for bits in (8, 16, 32, 64) for sign in (1, -1) for by in (-1, 0, 1)]
    assert encode_texts(texts) == list(map(codec.encode, texts))
    assert encode_strings(strings) == list(map(codec.encode, strings))
    assert encode_ints(numbers) == list(map(codec.encode, numbers))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 8_000])
def test_strings_of_any_length_are_encoded_as_the_encoder_does(length: int) -> None:
    assert encode_texts(["x" * length, "y"]) == [codec.encode("x" * length), codec.encode("y")]
    assert encode_strings([b"x" * length, b"y"]) == [codec.encode(b"x" * length), codec.encode(b"y")]


SIMPLE = st.one_of(st.integers(), st.text(max_size=300), st.binary(max_size=300))


@given(st.lists(SIMPLE, max_size=30), st.lists(st.binary(max_size=3), max_size=2), st.randoms())
def test_many_are_decoded_as_each_is(values: list[Any], odd: list[bytes], rng: Any) -> None:
    many = [*map(codec.encode, values), *odd]
    rng.shuffle(many)
    try:
        expected = [codec.decode(data) for data in many]
    except CorruptData:
        with pytest.raises(CorruptData):
            codec.decode_all(many)
    else:
        assert repr(codec.decode_all(many)) == repr(expected)


@pytest.mark.parametrize("kind", ["str", "int", "bytes", "(str, int)"])
@given(data=st.data())
def test_many_keys_are_decoded_as_each_is(kind: str, data: st.DataObject) -> None:
    """Also when bytes are none of the type, spelt otherwise, or more than one key: as one, they may look well."""
    key_type = KeyType.parse(kind)
    keys = st.one_of(
        SIMPLE.map(codec.encode), st.tuples(st.text(max_size=3), st.integers()).map(codec.encode)
    )
    odd = st.one_of(
        st.sampled_from([b"\x18\x01", b"\x61a\x61b", b"\x01\x02", b"\x78\x01a", b""]), st.binary(max_size=4)
    )
    own = PARTS[kind].map(codec.encode) if kind in PARTS else keys
    many = data.draw(st.lists(st.one_of(own, own, keys, odd), min_size=1, max_size=6))
    try:
        expected = [key_type.decode(each) for each in many]
    except CorruptData:
        with pytest.raises(CorruptData):
            key_type.decode_all(many)
    else:
        assert key_type.decode_all(many) == expected


@given(st.lists(st.one_of(st.integers(), st.integers(-(1 << 63), (1 << 63) - 1), st.text())))
def test_many_values_are_encoded_as_each_is(values: list[Any]) -> None:
    assert codec.encode_values(values) == [codec.encode_value(value) for value in values]


@pytest.mark.parametrize("spec", ["float", "", "()", "(str, float)", "str,", list, None, 3, "[str]"])
def test_an_unknown_key_type_is_refused(spec: object) -> None:
    with pytest.raises(InvalidConfiguration, match="expected a key type"):
        KeyType.parse(spec)


def test_the_largest_key_is_taken_and_a_larger_one_is_not() -> None:
    encode = KeyType.parse(bytes).encoder()

    assert len(encode(b"x" * (codec.MAX_KEY_BYTES - 3))) == codec.MAX_KEY_BYTES
    with pytest.raises(TooLarge, match="8,001 bytes"):
        encode(b"x" * (codec.MAX_KEY_BYTES - 2))


@pytest.mark.parametrize(
    ("spec", "value"), [(int, True), (int, 1.0), (str, b""), (float, 1), (dict, []), ("any", None)]
)
def test_a_value_of_another_type_is_refused(spec: object, value: object) -> None:
    with pytest.raises(InvalidData, match="expected a value of type"):
        ValueType.parse(spec).check(value)


@pytest.mark.parametrize("value", [memoryview(b"x"), [memoryview(b"x")], {"a": memoryview(b"x")}])
def test_a_memoryview_of_some_database_driver_is_not_stored_as_a_list(value: object) -> None:
    with pytest.raises(InvalidData, match="a memoryview as a list of ints: give bytes"):
        codec.encode_value(value)


@pytest.mark.parametrize("value", [datetime(2026, 1, 31), [{"at": datetime(2026, 1, 31)}]])  # noqa: DTZ001
def test_a_time_without_a_zone_is_refused_with_what_to_give(value: object) -> None:
    with pytest.raises(InvalidData, match=r"give a datetime a time zone, as in 2026-01-31T12:00Z\)$"):
        codec.encode(value)


def test_an_unknown_value_type_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="expected a value type of int, float"):
        ValueType.parse("complex")


@pytest.mark.parametrize("once", ["", b"", "x" * 1001, 7, None, bytearray(b"x")])
def test_a_bad_operation_id_is_refused(once: object) -> None:
    with pytest.raises(InvalidData, match="operation id"):
        codec.encode_operation(once)
