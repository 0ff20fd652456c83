"""Documents: the sums of a queue are always those over the documents stored, whatever faults come between."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import cq
from cq.errors import InvalidConfiguration, InvalidData, TooLarge
from cq.intake import documents as module
from cq.intake.documents import Documents
from cq.keys import QueueKeys
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact
from tests.kit.queues import combine_all, commits, stored
from tests.kit.sized import MOST, Sized

SIX = "1s:1h,1m:2h,5m:3h,15m:4h,1h:60d,1d:forever"


@pytest.fixture
def documents(db: Any, name: str) -> Documents:
    cq.configure(db, name, buckets=4)
    return Documents(cq.CombineQueue(name))


def sums(db: Any, documents: Documents) -> dict[Any, int]:
    combine_all(db, documents.queue.name)
    return dict(documents.queue.scan(db))


def counts_of(db: Any, documents: Documents, document: bytes) -> dict[Any, int] | None:
    return transact(db, lambda tr: documents.counts(tr, document))


def test_the_difference_is_added(db: Any, documents: Documents) -> None:
    assert documents.put(db, b"one", {"a": 2, "b": 1}) == 2
    assert documents.put(db, b"two", {"a": 5}) == 1
    assert sums(db, documents) == {"a": 7, "b": 1}
    assert documents.put(db, b"one", {"a": 2, "c": 3, "d": 0}) == 2
    assert sums(db, documents) == {"a": 7, "c": 3}
    assert counts_of(db, documents, b"one") == {"a": 2, "c": 3}
    assert documents.put(db, b"one", {"a": 2, "c": 3}) == 0


def test_a_removed_document_counts_no_more(db: Any, documents: Documents) -> None:
    documents.put(db, b"one", {"a": 2})
    documents.put(db, b"two", {"a": 1})
    documents.put(db, b"empty", {})

    assert [documents.remove(db, each) for each in (b"one", b"one", b"empty", b"unknown")] == [1, 0, 0, 0]
    assert list(documents.ids(db)) == [b"two"]
    assert counts_of(db, documents, b"one") is None
    assert sums(db, documents) == {"a": 1}


def test_ids_are_listed_in_pages(db: Any, documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_rows, "__defaults__", (2,))
    for number in range(5):
        documents.put(db, b"document %d" % number, {})

    assert list(documents.ids(db)) == [b"document %d" % number for number in range(5)]


def test_one_id_may_begin_another(db: Any, documents: Documents) -> None:
    for id_ in (b"a", b"ab", b"a\x00", b"a\xff"):
        documents.put(db, id_, {"x": 1})
    documents.remove(db, b"a")

    assert set(documents.ids(db)) == {b"ab", b"a\x00", b"a\xff"}
    assert sums(db, documents) == {"x": 3}


def test_a_large_document_is_stored_in_parts_and_pieces(db: Any, documents: Documents) -> None:
    large = {f"item {number}": number for number in range(1, 50_001)}

    assert documents.put(db, b"large", large) == 50_000
    assert documents.put(db, b"large", {**large, "item 1": 7}) == 1
    assert counts_of(db, documents, b"large") == {**large, "item 1": 7}
    assert documents.put(db, b"large", {"item 1": 7}) == 50_001, "stored in another shape: all anew"
    assert sums(db, documents) == {"item 1": 7}
    keys = QueueKeys(documents.queue.name)
    assert len(stored(db, keys.document_part(b"large", 0))) == 1
    assert stored(db, keys.document_part(b"large", 1)) == []


def test_a_document_of_long_items_fits_into_its_transactions(db: Any, documents: Documents) -> None:
    """Two thousand items of 6 kB are more than a transaction may write."""
    large = {f"{number:06,}" * 1000: 1 for number in range(2000)}

    assert documents.put(db, b"large", large) == 2000
    assert counts_of(db, documents, b"large") == large


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("items", "size"), [(20_000, 1), (20_000, 45), (400, 7_900)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window": 600},
        {"rollup": SIX},
        {"buckets": 4096},
    ],
    ids=["queue", "window", "rollup", "many buckets"],
)
def test_a_transaction_of_a_part_writes_about_a_megabyte_at_most(
    db: Any, name: str, settings: Any, items: int, size: int
) -> None:
    """Also where each update is written for all levels or for a window, and all items are replaced by others.

    Parts are ranges of a hash, so that parts of few long items differ in size: a tenth more is allowed.
    """
    cq.configure(db, name, **settings)
    documents, sized = Documents(cq.CombineQueue(name)), Sized(db)

    for letter in "xy":
        counts = {f"{number:06}{letter * size}": 1 for number in range(items)}
        documents.put(sized, b"one", counts)
        assert counts_of(db, documents, b"one") == counts
    documents.remove(sized, b"one")

    assert max(sized.sizes) <= 1.1 * MOST
    assert sum(sized.sizes) / len(sized.sizes) > MOST / 20, "not in many small transactions either"


def test_items_are_keys_of_the_queues_type(db: Any, name: str) -> None:
    cq.configure(db, name, key=(str, int))
    documents = Documents(cq.CombineQueue(name))
    documents.put(db, b"one", {("a", 1): 2})

    assert counts_of(db, documents, b"one") == {("a", 1): 2}
    assert sums(db, documents) == {("a", 1): 2}
    for item in ("a", ("a", True)):  # the last one equals the stored item, which is not added again
        with pytest.raises(InvalidData):
            documents.put(db, b"one", {item: 2, ("b", 1): 1})
        with pytest.raises(InvalidData):
            transact(db, lambda tr: documents.set(tr, b"one", {item: 2, ("b", 1): 1}))  # noqa: B023
    documents.remove(db, b"one")
    assert sums(db, documents) == {}


def test_a_queue_without_sums_of_int_is_refused(db: Any, name: str) -> None:
    documents = Documents(cq.configure(db, name, key=str, value=int, combiner="maximum"))
    with pytest.raises(InvalidConfiguration, match="the combiner sum for documents"):
        documents.put(db, b"one", {"a": 2})
    with pytest.raises(InvalidConfiguration, match="the combiner sum for documents"):
        transact(db, lambda tr: documents.set(tr, b"one", {"a": 2}))


@pytest.mark.parametrize(
    ("document", "counts", "error"),
    [
        (b"", {}, InvalidData),
        (b"x" * 8001, {}, InvalidData),
        ("text", {}, InvalidData),
        (b"one", None, InvalidData),
        (b"one", {"a": 1.5}, InvalidData),
        (b"one", {"a": True}, InvalidData),
        (b"one", {1: 1}, InvalidData),
        (b"one", {"a" * 9000: 1}, TooLarge),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_stored(
    db: Any, documents: Documents, document: Any, counts: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        documents.put(db, document, counts)

    assert list(documents.ids(db)) == []
    assert sums(db, documents) == {}


def test_storing_that_was_broken_off_is_finished_by_the_next(
    db: Any, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_ITEMS", 10)
    counts = {f"item {number}": 1 for number in range(40)}
    put, left = Documents._put_part, [2]

    def die(self: Documents, *args: Any, **given: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return put(self, *args, **given)

    monkeypatch.setattr(Documents, "_put_part", die)
    with pytest.raises(KeyboardInterrupt):
        documents.put(db, b"one", counts)
    assert 0 < len(sums(db, documents)) < 40
    left[0] = -1

    documents.put(db, b"one", counts)

    assert sums(db, documents) == counts


# Within the application's transaction


def test_it_is_stored_with_whatever_else_the_transaction_writes(db: Any, documents: Documents) -> None:
    def tag(tr: Any, names: list[str]) -> int:
        tr.set(b"article", ",".join(names).encode())
        return documents.set(tr, b"article", dict.fromkeys(names, 1))

    assert cq.transact(db, lambda tr: tag(tr, ["new", "red"])) == 2
    with pytest.raises(ZeroDivisionError):
        cq.transact(db, lambda tr: tag(tr, ["lost"]) / 0)
    assert sums(db, documents) == {"new": 1, "red": 1}
    assert cq.transact(db, lambda tr: tag(tr, ["red", "big"])) == 2
    assert cq.transact(db, lambda tr: tag(tr, ["red", "big"])) == 0
    assert sums(db, documents) == {"red": 1, "big": 1}

    assert cq.transact(db, lambda tr: documents.clear(tr, b"article")) == 2
    assert cq.transact(db, lambda tr: documents.clear(tr, b"article")) == 0
    assert sums(db, documents) == {}
    assert list(documents.ids(db)) == []


def test_only_those_who_store_the_same_document_conflict(db: Any, documents: Documents) -> None:
    first, same, other = (db.create_transaction() for _ in range(3))
    documents.set(first, b"one", {"hot": 1})
    documents.set(same, b"one", {"hot": 1})
    documents.set(other, b"other", {"hot": 1})

    first.commit().wait()
    other.commit().wait()
    assert not commits(same)
    assert sums(db, documents) == {"hot": 2}


def test_what_does_not_fit_into_one_transaction_is_refused(
    db: Any, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_ITEMS", 2)
    large = {"a": 1, "b": 1, "c": 1}
    documents.put(db, b"large", large)

    with pytest.raises(TooLarge, match="3 items do not fit"):
        cq.transact(db, lambda tr: documents.set(tr, b"one", large))
    with pytest.raises(TooLarge, match="was stored in 2 parts"):
        cq.transact(db, lambda tr: documents.set(tr, b"large", {"a": 1}))
    with pytest.raises(TooLarge, match="was stored in 2 parts"):
        cq.transact(db, lambda tr: documents.clear(tr, b"large"))

    assert sums(db, documents) == large


class AnyOrder(RuleBasedStateMachine):
    """Storing and removing in any order, in parts of two items."""

    db: Any
    documents: Documents
    numbers = itertools.count()

    @initialize()
    def prepare(self) -> None:
        queue = f"queue-{next(self.numbers)}"
        cq.configure(self.db, queue, buckets=2)
        self.documents = Documents(cq.CombineQueue(queue))
        self.kept: dict[bytes, dict[str, int]] = {}

    @rule(
        document=st.sampled_from([b"a", b"b"]),
        counts=st.dictionaries(st.sampled_from("uvwxyz"), st.integers(-2, 2)),
    )
    def put(self, document: bytes, counts: dict[str, int]) -> None:
        self.documents.put(self.db, document, counts)
        self.kept[document] = {item: count for item, count in counts.items() if count}

    @rule(
        document=st.sampled_from([b"a", b"b"]),
        counts=st.dictionaries(st.sampled_from("uvwxyz"), st.integers(-2, 2), max_size=3),
    )
    def set(self, document: bytes, counts: dict[str, int]) -> None:
        wanted = {item: count for item, count in counts.items() if count}
        if len(wanted) > module._PART_ITEMS or len(self.kept.get(document, {})) > module._PART_ITEMS:
            with pytest.raises(TooLarge):
                transact(self.db, lambda tr: self.documents.set(tr, document, counts))
        else:
            transact(self.db, lambda tr: self.documents.set(tr, document, counts))
            self.kept[document] = wanted

    @rule(document=st.sampled_from([b"a", b"b"]))
    def clear(self, document: bytes) -> None:
        if len(self.kept.get(document, {})) <= module._PART_ITEMS:
            transact(self.db, lambda tr: self.documents.clear(tr, document))
            self.kept.pop(document, None)

    @rule(document=st.sampled_from([b"a", b"b"]))
    def remove(self, document: bytes) -> None:
        self.documents.remove(self.db, document)
        self.kept.pop(document, None)

    @invariant()
    def sums_are_those_of_the_documents(self) -> None:
        expected: Counter[str] = Counter()
        for counts in self.kept.values():
            for item, count in counts.items():
                expected[item] += count
        assert sums(self.db, self.documents) == {item: count for item, count in expected.items() if count}
        assert list(self.documents.ids(self.db)) == sorted(self.kept)


def test_any_order_of_storing_and_removing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_ITEMS", 2)
    database: Any = cq.open(f"embedded:{tmp_path / 'any.db'}")
    monkeypatch.setattr(AnyOrder, "db", database, raising=False)
    try:
        run_state_machine_as_test(AnyOrder, settings=settings(max_examples=25))
    finally:
        database.close()
