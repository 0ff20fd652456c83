"""Adding and reading: blind, validated whole, in commit order."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest

import cq
from cq.encoding import codec
from cq.encoding.codec import MAX_UPDATE_BYTES
from cq.errors import (
    BacklogTooDeep,
    CodeMismatch,
    InvalidData,
    QueueNotConfigured,
    TooLarge,
)
from cq.keys import QueueKeys
from cq.store.transact import transact
from cq.testing import assert_drained, drain
from tests.kit.faults import Calls
from tests.kit.observing import concatenation
from tests.kit.queues import add, aside, begun, combine_all, get, put, stored


def test_what_is_added_is_combined_and_read(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4)
    words = cq.CombineQueue(name)
    transact(db, lambda tr: words.add(tr, {"a": 1, "b": 2}))
    transact(db, lambda tr: words.add(tr, {"a": 4}))

    assert transact(db, lambda tr: words.get(tr, "a")) is None
    assert transact(db, lambda tr: words.get(tr, "a", pending=True)) == 5
    drain(db, name)
    assert transact(db, lambda tr: words.get_many(tr, ["a", "b", "c"])) == {"a": 5, "b": 2, "c": None}
    assert_drained(db, name)


def test_an_add_issues_just_the_writes_it_must(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    words = cq.CombineQueue(name)
    tr = Calls(begun(db, name))
    snapshot = tr.__dict__["snapshot"] = Calls(tr.snapshot)

    words.add(tr, {"a": 1, "b": 2}, once="id")

    assert snapshot.made[-1:] == ["get"]  # the metadata version, which comes with the read version
    assert set(snapshot.made[:-1]) <= {"get_read_version"}  # of a cluster
    assert tr.made == [
        "add_read_conflict_key",  # the queue's configuration
        "set_versionstamped_key",  # one row
        "set_versionstamped_value",  # the notification
        "set_versionstamped_key",  # the marker of the operation
    ]


def test_an_add_costs_by_the_buckets_it_touches_and_not_by_its_updates(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4, audit=True)
    words = cq.CombineQueue(name)
    tr = Calls(begun(db, name))

    words.add(tr, {f"k{number}": 1 for number in range(1_000)})

    assert tr.made == [
        "add_read_conflict_key",  # the queue's configuration
        *["set_versionstamped_key", "set_versionstamped_value"]
        * 4,  # a row and the notification of each bucket
        *["add"] * 4,  # to the audit's sum of each bucket
    ]


def test_adds_write_a_row_for_every_8_kb_of_a_bucket(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, {f"{n:0100}": n for n in range(1000)}))

    sizes = [len(value) for _, value in stored(db, QueueKeys(name).all_rows())]
    assert 12 < len(sizes) < 20
    assert max(sizes) < 8_200


def test_an_empty_add_writes_nothing(db: Any, name: str) -> None:
    cq.configure(db, name)
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, {}))

    assert_drained(db, name)
    assert stored(db, QueueKeys(name).markers()) == []


@pytest.mark.parametrize("wrap", [lambda item: [item], lambda item: {"a": item}])
def test_what_cbor_would_not_give_back_is_refused_before_it_is_written(db: Any, name: str, wrap: Any) -> None:
    cq.configure(db, name, value="any", combiner="last", buckets=1)
    deep: Any = 1
    for _ in range(399):
        deep = wrap(deep)

    with pytest.raises(InvalidData, match="CBOR"):
        transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"good": 1, "deep": deep}))
    assert_drained(db, name)


@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ({"a": 1, 7: 1}, InvalidData),
        ({"a": 1, "b": "1"}, InvalidData),
        ({"a": 1, "b": True}, InvalidData),
        ({"a": 1, "b": None}, InvalidData),
        ({"a": 1, "b": 1 << 8 * MAX_UPDATE_BYTES}, TooLarge),
        ({"a": 1, "b" * 9000: 1}, TooLarge),
        ({"a": 1, "b": cq.DELETE}, InvalidData),
    ],
)
def test_an_add_is_validated_whole_before_its_first_write(
    db: Any, name: str, updates: dict[Any, Any], error: type[Exception]
) -> None:
    cq.configure(db, name, buckets=1)

    def add(tr: Any) -> None:
        with pytest.raises(error):
            cq.CombineQueue(name).add(tr, updates)

    transact(db, add)
    assert_drained(db, name)


NAN = float("nan")


@pytest.mark.parametrize("combiner", ["minimum", "maximum"])
@pytest.mark.parametrize("update", [NAN, Decimal("NaN"), [1.0, [NAN]], {1}, [frozenset({1})]], ids=repr)
def test_an_extreme_of_what_has_no_order_is_refused(db: Any, name: str, combiner: str, update: Any) -> None:
    cq.configure(db, name, value="any", combiner=combiner, buckets=1)

    def add(tr: Any) -> None:
        with pytest.raises(InvalidData, match="key 'b'"):
            cq.CombineQueue(name).add(tr, {"a": 1.0, "b": update})

    transact(db, add)
    assert_drained(db, name)


@pytest.mark.parametrize(("combiner", "rest"), [("minimum", [1.0, 0.0]), ("maximum", [0.0, 1.0])])
def test_numbers_replace_a_stored_nan(db: Any, name: str, combiner: str, rest: list[float]) -> None:
    """An earlier version has stored it as a value and as an update."""
    cq.configure(db, name, value=float, combiner=combiner, buckets=1)
    keys, encoded = QueueKeys(name), codec.encode("a")
    transact(db, lambda tr: tr.set(keys.value(encoded), codec.encode(NAN)))
    for update in (NAN, *rest):
        row = codec.encode([None, encoded, update])
        transact(db, lambda tr: tr.set_versionstamped_key(keys.new_row(1, 0, 0), row))  # noqa: B023

    combine_all(db, name)

    assert get(db, name, "a") == rest[-1]
    assert aside(db, name) == []


def test_the_largest_update_goes_all_the_way(db: Any, name: str) -> None:
    cq.configure(db, name, key=bytes, value=bytes, combiner="last")
    queue = cq.CombineQueue(name)
    key, value = b"k" * 7990, b"x" * (MAX_UPDATE_BYTES - 5)

    transact(db, lambda tr: queue.add(tr, {key: value}, once=b"i" * 1000))
    drain(db, name)

    assert transact(db, lambda tr: queue.get(tr, key)) == value


def test_a_queue_must_be_configured(db: Any, name: str) -> None:
    queue = cq.CombineQueue(name)
    for use in (lambda tr: queue.add(tr, {"a": 1}), lambda tr: queue.get(tr, "a"), queue.items):
        with pytest.raises(QueueNotConfigured, match=f"cq configure {name}"):
            transact(db, use)


def test_an_add_that_is_not_committed_leaves_nothing(db: Any, name: str) -> None:
    cq.configure(db, name)
    tr = db.create_transaction()
    cq.CombineQueue(name).add(tr, {"a": 1})
    tr.reset()

    assert_drained(db, name)


def test_updates_of_one_transaction_are_combined_in_the_order_they_were_added(db: Any, name: str) -> None:
    cq.configure(db, name, value=list, combiner=concatenation, buckets=1)
    queue = cq.CombineQueue(name, combiner=concatenation)

    def add(tr: Any) -> None:
        queue.add(tr, {"a": [1]})
        queue.add(tr, [("a", [2]), ("b", [0]), ("a", [3])])
        queue.add(tr, {"a": [4]})

    transact(db, add)
    assert transact(db, lambda tr: queue.get(tr, "a", pending=True)) == [1, 2, 3, 4]


def test_pending_reads_combine_the_value_then_staged_updates_then_queued_ones(db: Any, name: str) -> None:
    cq.configure(db, name, value=list, combiner=concatenation)
    queue, keys, key = cq.CombineQueue(name, combiner=concatenation), QueueKeys(name), codec.encode("a")
    put(db, {keys.value(key): codec.encode([1]), keys.staged(key): codec.encode([2])})
    add(db, name, {"a": [3]})

    assert transact(db, lambda tr: queue.get(tr, "a", pending=True)) == [1, 2, 3]


def test_delete_removes_a_key_of_a_queue_of_last_values(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner="last")
    queue = cq.CombineQueue(name)
    transact(db, lambda tr: queue.add(tr, {"a": "x"}))
    drain(db, name)
    transact(db, lambda tr: queue.add(tr, {"a": cq.DELETE}))

    assert transact(db, lambda tr: queue.get(tr, "a")) == "x"
    assert transact(db, lambda tr: queue.get(tr, "a", pending=True)) is None
    drain(db, name)
    assert transact(db, lambda tr: queue.get(tr, "a")) is None
    assert stored(db, QueueKeys(name).values()) == []


def test_pending_reads_do_not_conflict_with_adds(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=1)
    queue = cq.CombineQueue(name)
    transact(db, lambda tr: queue.add(tr, {"a": 1}))
    tr = db.create_transaction()
    assert queue.get(tr, "a", pending=True) == 1
    transact(db, lambda other: queue.add(other, {"a": 1}))
    tr.set(b"test/" + name.encode(), b"")

    tr.commit().wait()
    transact(db, lambda tr: tr.clear(b"test/" + name.encode()))


def test_a_deep_backlog_is_not_combined_while_reading(db: Any, name: str) -> None:
    cq.configure(db, name, value=bytes, combiner="last", buckets=1)
    queue = cq.CombineQueue(name)
    for number in range(15):
        add(db, name, {f"k{number}": b"x" * 80_000})

    with pytest.raises(BacklogTooDeep, match="1,000,000 bytes"):
        transact(db, lambda tr: queue.get(tr, "k0", pending=True))


def test_pending_reads_need_the_queues_combiner(db: Any, name: str) -> None:
    cq.configure(db, name, value=list, combiner=concatenation)

    with pytest.raises(CodeMismatch, match=r"combiner=\.\.\."):
        transact(db, lambda tr: cq.CombineQueue(name).get(tr, "a", pending=True))


def test_items_come_in_pages_each_key_once(db: Any, name: str) -> None:
    cq.configure(db, name, key=(str, int), buckets=4)
    queue = cq.CombineQueue(name)
    wanted = {("k", number): number + 1 for number in range(25)}
    transact(db, lambda tr: queue.add(tr, wanted))
    drain(db, name)

    pages = []
    after = None
    while True:
        page = transact(db, partial(queue.items, limit=10, after=after))
        pages.append(page.items)
        after = page.continuation
        if after is None:
            break

    assert [len(page) for page in pages] == [10, 10, 5]
    assert dict(item for page in pages for item in page) == wanted
    assert dict(queue.scan(db, limit=7)) == wanted
    limits: list[Any] = [0, -1, True, 2.0, 1 << 31, 10**30]
    for limit in limits:
        with pytest.raises(InvalidData, match="expected a limit from 1"):
            transact(db, partial(queue.items, limit=limit))


class TestOnce:
    """Operation ids: of all transactions that add with one, only the first to commit counts."""

    def test_a_second_try_does_not_count_whatever_it_contains(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=4)
        queue = cq.CombineQueue(name)
        transact(db, lambda tr: queue.add(tr, {"a": 1, "b": 1}, once="op"))
        transact(db, lambda tr: queue.add(tr, {"a": 1, "c": 5}, once="op"))
        transact(db, lambda tr: queue.add(tr, {"a": 1}, once="other"))

        assert transact(db, lambda tr: queue.get(tr, "a", pending=True)) == 2
        assert transact(db, lambda tr: queue.get(tr, "c", pending=True)) is None
        drain(db, name)
        assert dict(queue.scan(db)) == {"a": 2, "b": 1}

    def test_a_second_try_does_not_count_after_the_first_was_combined(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        queue = cq.CombineQueue(name)
        transact(db, lambda tr: queue.add(tr, {"a": 1}, once=b"op"))
        drain(db, name)
        transact(db, lambda tr: queue.add(tr, {"a": 1}, once=b"op"))
        results = combine_all(db, name)

        assert dict(queue.scan(db)) == {"a": 1}
        assert sum(result.repeated for result in results) == 1
        assert_drained(db, name)

    def test_several_adds_of_one_transaction_all_count(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        queue = cq.CombineQueue(name)

        def add(tr: Any) -> None:
            queue.add(tr, {"a": 1}, once="op")
            queue.add(tr, {"a": 1, "b": 1}, once="op")

        transact(db, add)
        drain(db, name)
        assert dict(queue.scan(db)) == {"a": 2, "b": 1}

    def test_a_first_try_without_updates_counts_too(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        queue = cq.CombineQueue(name)
        transact(db, lambda tr: queue.add(tr, {}, once="op"))
        transact(db, lambda tr: queue.add(tr, {"a": 1}, once="op"))
        drain(db, name)

        assert dict(queue.scan(db)) == {}
