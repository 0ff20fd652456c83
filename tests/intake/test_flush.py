"""What an emitter gathers is what it was given: merging changes no value, and makes nothing larger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.combiners import BUILT_IN
from cq.config.queue import Named, QueueConfig
from cq.encoding.bounds import MAX_INT_BYTES
from cq.encoding.codec import MAX_UPDATE_BYTES, KeyType, ValueType
from cq.intake.flush import FLUSH_BYTES, Flush, Intake
from cq.queue.packing import check_update

pytestmark = pytest.mark.sampled(3)


def _refuse_odd(key: Any, values: Any) -> Any:
    if any("odd" in value for value in values):
        raise ValueError("odd")
    return "".join(values)


CONCATENATE = cq.Combiner("concatenate", 1, lambda key, values: "".join(values))
PICKY = cq.Combiner("picky", 1, _refuse_odd)
GROWING = cq.Combiner("growing", 1, lambda key, values: "x" * 80_000)
NOTHING = cq.Combiner("nothing", 1, lambda key, values: None)

TEXT = st.sampled_from(["a", "b", "odd", "", "é"])
INTS = st.integers(-5, 5) | st.integers(-(1 << 70), 1 << 70)
KINDS: dict[str, tuple[cq.Combiner, str, st.SearchStrategy[Any]]] = {
    "sum": (BUILT_IN["sum"], "int", INTS),
    "decimals": (BUILT_IN["sum"], "decimal", st.decimals(-100, 100, allow_nan=False)),
    "mixed": (BUILT_IN["sum"], "any", INTS | st.decimals(-100, 100, allow_nan=False)),
    "maximum": (BUILT_IN["maximum"], "int", INTS),
    "last": (BUILT_IN["last"], "str", TEXT | st.just(cq.DELETE)),
    "first": (BUILT_IN["first"], "str", TEXT),
    "union": (BUILT_IN["union"], "set", st.frozensets(TEXT)),
    "counter": (BUILT_IN["counter"], "dict", st.dictionaries(TEXT, INTS)),
    "own": (CONCATENATE, "str", TEXT),
}


def intake(combiner: cq.Combiner, value: str, key: object = str) -> Intake:
    named = Named(combiner.name, combiner.version)
    config = QueueConfig(
        "q", key=KeyType.parse(key), value=ValueType.parse(value), combiner=named, observers=(), buckets=4
    )
    return Intake(QueueConfig(**{**_fields(config), "takes_delete": combiner.takes_delete}), combiner)


def _fields(config: QueueConfig) -> dict[str, Any]:
    return {what: getattr(config, what) for what in config.__slots__}


def gathered(into: Intake, updates: Any) -> dict[Any, list[Any]]:
    """What a flush of these would add, by key."""
    flush = Flush(into, 1_000_000, 1)
    for increment in into.increments(updates):
        flush.add(increment)
    return by_key(flush.updates())


def by_key(updates: Any) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for key, update in updates.items() if isinstance(updates, Mapping) else updates:
        found[key].append(update)
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_merging_changes_no_value(kind: str, data: st.DataObject) -> None:
    combiner, value, updates = KINDS[kind]
    given_ = data.draw(st.lists(st.tuples(st.sampled_from("abc"), updates), max_size=30))

    found = gathered(intake(combiner, value), given_)

    assert found.keys() == by_key(given_).keys()
    for key, plain in by_key(given_).items():
        assert combiner.combine(key, found[key]) == combiner.combine(key, plain)
        # An exact sum may be longer than what it is of: then it is not made.
        if kind not in ("decimals", "mixed"):
            assert len(found[key]) <= 2  # small ints, and the rest


@given(st.lists(st.tuples(st.sampled_from("ab"), TEXT), max_size=30))
def test_what_cannot_be_merged_stays_as_it_is_in_its_order(updates: list[tuple[str, str]]) -> None:
    found = gathered(intake(PICKY, "str"), updates)

    for key, plain in by_key(updates).items():
        assert "".join(found[key]) == "".join(plain)
        assert found[key].count("odd") == plain.count("odd")


@pytest.mark.parametrize("combiner", [GROWING, NOTHING], ids=lambda combiner: combiner.name)
def test_merging_never_makes_more_of_it(combiner: cq.Combiner) -> None:
    """Nor something that the queue would not take: a transaction must not become too large, or fail."""
    assert gathered(intake(combiner, "str"), [("k", "a"), ("k", "b")]) == {"k": ["a", "b"]}


def test_what_is_too_large_together_is_merged_in_parts() -> None:
    part = 40_000
    into = intake(CONCATENATE, "str")

    found = gathered(into, [("k", f"{number}" * part) for number in range(6)])

    assert "".join(found["k"]) == "".join(f"{number}" * part for number in range(6))
    assert 1 < len(found["k"]) < 6
    assert all(check_update(into.adds.config, "k", update) <= MAX_UPDATE_BYTES for update in found["k"])


def test_sums_of_large_ints_stay_valid_updates() -> None:
    largest = (1 << 8 * MAX_INT_BYTES) - 1
    into = intake(BUILT_IN["sum"], "int")

    found = gathered(into, [("k", largest)] * 3)

    assert sum(found["k"]) == 3 * largest
    assert all(check_update(into.adds.config, "k", update) <= MAX_UPDATE_BYTES for update in found["k"])


def test_what_a_caller_changes_afterwards_is_not_changed() -> None:
    into = intake(BUILT_IN["counter"], "dict")
    counts = {"a": 1}
    flush = Flush(into, 10, 1)
    for increment in into.increments({"k": counts}):
        flush.add(increment)

    counts["a"] = 100

    assert by_key(flush.updates()) == {"k": [{"a": 1}]}


@pytest.mark.parametrize(
    ("key", "updates"),
    [
        (int, {True: 1}),
        (int, {1.0: 1}),
        (str, {1: 1}),
        (str, {"\ud800": 1}),
        (str, {"k" * 9_000: 1}),
        ((str, int), {("a", True): 1}),
        ((str, int), {("a",): 1}),
        (str, {"k": True}),
        (str, {"k": "1"}),
        (str, {"k": None}),
        (str, {"k": cq.DELETE}),
        (str, {"k": 1 << 1_000_000}),
        (str, [("k", 1, 2)]),
        (str, 5),
    ],
)
def test_what_a_queue_does_not_take_is_refused_at_once(key: object, updates: Any) -> None:
    with pytest.raises(cq.InvalidData):
        intake(BUILT_IN["sum"], "int", key).increments(updates)


@pytest.mark.parametrize("key", ["a", "é", "a" * 1_000, "a" * 1_001, "é" * 1_000])
def test_the_size_of_a_plain_increment_is_not_too_small(key: str) -> None:
    into = intake(BUILT_IN["sum"], "int")

    assert into.plain_size(key) >= into.increments({key: 1 << 62})[0].size


@pytest.mark.parametrize("add", [Decimal(1), 1 << 63, -(1 << 63) - 1, 1.5])
def test_only_small_ints_are_summed_at_once(add: Any) -> None:
    assert not intake(BUILT_IN["sum"], "any").is_summed(add)


def test_a_flush_has_no_room_beyond_what_a_transaction_should_write() -> None:
    flush = Flush(intake(BUILT_IN["sum"], "int"), 10, 1)
    assert flush.has_room(FLUSH_BYTES)

    flush.grow(FLUSH_BYTES - 1)

    assert not flush.has_room(2)
    assert flush.most == 10
    flush.grow(1)
    assert flush.most == 0
