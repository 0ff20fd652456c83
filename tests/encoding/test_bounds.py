"""What a value may cost the worker that reads and combines it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import cbor2
import pytest

import cq
from cq.combiners import counter, union
from cq.config.queue import Named, QueueConfig
from cq.encoding import codec
from cq.encoding.bounds import MAX_COLLISIONS, MAX_INT_BYTES
from cq.encoding.codec import KeyType, ValueType
from cq.encoding.json_values import value_from_json, value_from_word
from cq.errors import CorruptData, InvalidData, TooLarge
from cq.keys import QueueKeys
from cq.observers.distinct import distinct
from cq.observers.links.outbox.table import OutboxRow
from cq.observers.links.outbox.task import batch_of
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values, drain
from tests.kit.queues import add, aside, combine_all, get

MODULUS = 2**61 - 1
"""Of CPython's hashes of numbers: all multiples have the hash 0."""
LONGEST = (1 << 8 * MAX_INT_BYTES) - 1
ALIKE: dict[str, Callable[[int], Any]] = {
    "ints": lambda number: number * MODULUS,
    "decimals": lambda number: Decimal(number * MODULUS),
    "small decimals": lambda number: Decimal(pow(10, number, MODULUS)).scaleb(-number),
    "UUIDs": lambda number: UUID(int=number * MODULUS),
    "tuples": lambda number: (number * MODULUS,),
    "frozensets": lambda number: frozenset((number * MODULUS,)),
}


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("of", [set, dict.fromkeys])
def test_sets_and_dicts_of_members_with_one_hash_are_refused(
    db: Any, name: str, kind: str, of: Callable[..., Any]
) -> None:
    value = of(ALIKE[kind](number) for number in range(1, 2 * MAX_COLLISIONS))
    assert len({*map(hash, value)}) == 1
    cq.configure(db, name, value="any", combiner="last", buckets=1)

    def refused(tr: Any) -> None:
        for each in (value, [{"a": value}]):
            with pytest.raises(InvalidData, match="key 'b'"):
                cq.CombineQueue(name).add(tr, {"a": 1, "b": each})

    transact(db, refused)
    assert_drained(db, name)


@pytest.mark.parametrize("kind", sorted(ALIKE.keys() - {"ints"}))
def test_a_merge_of_members_with_one_hash_ends_soon(kind: str) -> None:
    members = [ALIKE[kind](number) for number in range(1, 10_000)]
    begun = time.thread_time()
    with pytest.raises(InvalidData, match="have the same hash"):
        union.combine("k", [{member} for member in members])
    with pytest.raises(InvalidData, match="have the same hash"):
        counter.combine("k", [{member: 1} for member in members])
    assert time.thread_time() - begun < 5.0  # merging all of them takes minutes


@pytest.mark.parametrize("kind", ["ints", "tuples"])
def test_a_set_in_json_of_members_with_one_hash_ends_soon(kind: str) -> None:
    text = json.dumps([ALIKE[kind](number) for number in range(100_000)])
    row = OutboxRow(1, '"a"', text, None, datetime.now(UTC))
    begun = time.thread_time()
    with pytest.raises(InvalidData, match="have the same hash"):
        value_from_json(ValueType("set"), json.loads(text))
    with pytest.raises(InvalidData, match="have the same hash"):
        value_from_word(ValueType("set"), text)
    config = QueueConfig(
        "tags",
        key=KeyType.parse(str),
        value=ValueType("set"),
        combiner=Named("union", 1),
        observers=(),
        buckets=1,
    )
    batch = batch_of(config, [row])
    assert "have the same hash" in batch.errors[1]
    assert time.thread_time() - begun < 5.0  # to make one such set takes minutes


def test_members_that_occur_often_are_merged() -> None:
    members = [(str(number), number) for number in range(200)]
    assert union.combine("k", [{*members}] * 50) == {*members}
    assert counter.combine("k", [dict.fromkeys(members, 1)] * 50) == dict.fromkeys(members, 50)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (LONGEST + 1, TooLarge),
        (-LONGEST - 2, TooLarge),
        ([LONGEST + 1], InvalidData),
        (Decimal("1" * 10_010), InvalidData),
        (Fraction(1, 3), InvalidData),
        ({1 << 64}, InvalidData),
        ({(1, -(1 << 64) - 1)}, InvalidData),
        ({frozenset((1 << 64,)): 1}, InvalidData),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else type(given).__name__,
)
def test_what_is_too_long_is_refused(db: Any, name: str, value: Any, error: type[Exception]) -> None:
    cq.configure(db, name, value="any", combiner="last", buckets=1)

    def refused(tr: Any) -> None:
        with pytest.raises(error, match="key 'b'"):
            cq.CombineQueue(name).add(tr, {"a": 1, "b": value})

    transact(db, refused)
    assert_drained(db, name)


@pytest.mark.parametrize("key", [LONGEST + 1, ("a", LONGEST + 1)], ids=["int", "tuple"])
def test_a_key_that_is_too_long_is_refused(key: Any) -> None:
    kind = KeyType.parse(int if type(key) is int else (str, int))
    with pytest.raises(TooLarge, match="10,000 digits"):
        kind.encode_all([key])
    with pytest.raises(TooLarge, match="10,000 digits"):
        kind.encoder()(key)


@pytest.mark.parametrize(
    "value",
    [
        LONGEST,
        -LONGEST - 1,
        10**9_999,
        [LONGEST, {"a": -LONGEST}],
        Decimal("1" * 10_000),
        {(1 << 64) - 1, -(1 << 64), "a", b"a", 0.5, None, True},
        {((1 << 64) - 1, "a"): LONGEST},
        {Decimal("1.10"), Decimal("123456789012345678.9"), UUID(int=7), (1, (2, 3)), frozenset((1, 2))},
        {datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 32)},
        set(range(-5_000, 5_000)),
        {(number, -number) for number in range(1_000)},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_within_the_bounds_comes_back(db: Any, name: str, value: Any) -> None:
    cq.configure(db, name, value="any", combiner="last")
    add(db, name, {"k": value})
    drain(db, name)

    assert_values(db, name, {"k": value})


@pytest.mark.parametrize(
    "value",
    [{MODULUS << 61, 1}, {MODULUS << 61: 1}, Fraction(1, 3), LONGEST + 1, [LONGEST + 1]],
    ids=lambda value: type(value).__name__,
)
def test_stored_updates_beyond_the_bounds_are_set_aside(db: Any, name: str, value: Any) -> None:
    """An earlier version stored them, or another program has."""
    cq.configure(db, name, value="any", combiner="last", buckets=1)
    keys, encoded = QueueKeys(name), codec.encode("k")
    row = cbor2.dumps([None, encoded, value])
    transact(db, lambda tr: tr.set_versionstamped_key(keys.new_row(1, 0, 0), row))
    add(db, name, {"other": 1})

    combine_all(db, name)

    assert [each.encoded_key for each in aside(db, name)] == [b""]
    assert get(db, name, "other") == 1


def test_a_stored_value_beyond_the_bounds_is_reported_as_corrupt(db: Any, name: str) -> None:
    cq.configure(db, name, value="any", combiner="last", buckets=1)
    key = QueueKeys(name).value(codec.encode("k"))
    transact(db, lambda tr: tr.set(key, cbor2.dumps({MODULUS << 61: 1})))
    with pytest.raises(CorruptData, match="an int of more than 8 bytes in a set or in a key"):
        get(db, name, "k")

    add(db, name, {"k": 1, "other": 1})
    combine_all(db, name)

    assert [each.encoded_key for each in aside(db, name)] == [codec.encode("k")]
    assert get(db, name, "other") == 1


def test_a_sum_that_grows_too_long_is_set_aside(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    add(db, name, {"k": LONGEST, "other": 1}, {"k": LONGEST})

    combine_all(db, name)

    assert [each.encoded_key for each in aside(db, name)] == [codec.encode("k")]
    assert get(db, name, "other") == 1


def test_distinct_keys_of_one_hash_are_counted_soon(db: Any, name: str) -> None:
    """Keys of queues are ints of any length, whose hashes can be predicted."""
    into = f"{name}-pages"
    cq.configure(db, into, key=int)
    cq.configure(db, name, key=(int, str), observers=[distinct(into)], buckets=1)
    pages = [number * MODULUS for number in range(1, 3_000)]
    for start in range(0, len(pages), 500):
        add(db, name, {(page, "ann"): 1 for page in pages[start : start + 500]})
    begun = time.thread_time()
    drain(db, name, into)

    assert time.thread_time() - begun < 10.0
    assert get(db, into, pages[0]) == get(db, into, pages[-1]) == 1
