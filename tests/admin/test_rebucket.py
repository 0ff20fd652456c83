"""Rebucketing, purging and deleting while the queue is in use: nothing is lost, repeated or out of order."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import admin
from cq.config.parts import Shape
from cq.encoding.hashing import bucket_of, overlapping
from cq.failure import KeyFailure
from cq.intake.documents import Documents
from cq.keys import QueueKeys
from cq.observers.top.index import top
from cq.passes.combine_pass import Pass
from cq.passes.plan import PassPlan
from cq.queue.set_aside import retry_aside, set_aside
from cq.store.transact import transact
from cq.testing import assert_drained, assert_values, drain
from tests.kit.observing import Seen, SeenInStore, app_with
from tests.kit.queues import add, aside, code_of, commits, config_of, get, stored


@pytest.mark.parametrize(
    ("buckets", "others"), [(1, 1), (1, 7), (7, 1), (16, 16), (5, 3), (3, 4096), (4096, 3)]
)
def test_buckets_overlap_where_they_share_hashes(buckets: int, others: int) -> None:
    words = [b"%d" % number for number in range(3000)]
    found = {(bucket_of(word, buckets), bucket_of(word, others)) for word in words}
    all_pairs = {
        (bucket, other) for bucket in range(buckets) for other in overlapping(buckets, bucket, others)
    }
    assert found <= all_pairs
    if max(buckets, others) < 20:
        assert found == all_pairs


class TestRebucket:
    """`rebucket` itself."""

    def test_nothing_of_the_shape_before_is_left(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=4)
        add(db, name, {f"k{number}": 1 for number in range(50)})
        changed = admin.rebucket(db, name, 9)
        assert (changed.buckets, changed.generation, changed.former) == (9, 2, Shape(1, 4))
        add(db, name, {f"k{number}": 1 for number in range(50)})
        drain(db, name)

        assert_values(db, name, {f"k{number}": 2 for number in range(50)})
        config = config_of(db, name)
        assert (config.buckets, config.former) == (9, None)
        for bounds in QueueKeys(name).of_generation(1):
            assert stored(db, bounds) == []

    def test_pending_updates_of_both_shapes_count_in_order(self, db: Any, name: str) -> None:
        cq.configure(db, name, value=str, combiner="last", buckets=4)
        add(db, name, {"a": "old"})
        admin.rebucket(db, name, 16)
        assert get(db, name, "a", pending=True) == "old"
        add(db, name, {"a": "new"})
        assert get(db, name, "a", pending=True) == "new"

    def test_observers_are_not_told_again(self, db: Any, name: str) -> None:
        seen = Seen()
        app = app_with(db, name, seen.observer, buckets=2)
        add(db, name, {f"k{number}": 1 for number in range(20)})
        drain(db, app=app)
        admin.rebucket(db, name, 7)
        drain(db, app=app)
        told = len(seen.changes)
        add(db, name, {f"k{number}": 1 for number in range(20)})
        drain(db, app=app)
        assert len(seen.changes) == told + 20
        assert {(change.old, change.new) for change in seen.changes[told:]} == {(1, 2)}

    def test_what_the_shape_before_reports_is_not_complete(self, db: Any, name: str) -> None:
        seen = Seen()
        app = app_with(db, name, seen.observer, buckets=1)
        add(db, name, {"a": 1})
        admin.rebucket(db, name, 2)
        add(db, name, {"a": 1})
        drain(db, app=app)
        assert seen.changes == [cq.Change("a", None, 1, complete=False), cq.Change("a", 1, 2)]

    def test_what_must_wait_is_said(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=8)
        add(db, name, {"a": 1})
        admin.rebucket(db, name, 3)
        with pytest.raises(cq.errors.NotNow, match="is still being rebucketed from 8 to 3 buckets"):
            admin.rebucket(db, name, 5)
        with pytest.raises(cq.errors.NotNow, match="is still being rebucketed"):
            admin.purge(db, name)
        with pytest.raises(cq.errors.NotNow, match="is still being rebucketed"):
            admin.put_observer(db, name, top(1))
        drain(db, name)
        admin.purge(db, name)
        with pytest.raises(cq.errors.NotNow, match="is still being purged"):
            admin.rebucket(db, name, 5)
        drain(db, name)
        add(db, name, {"a": 1})
        drain(db, name)
        admin.put_observer(db, name, top(1))
        with pytest.raises(
            cq.errors.NotNow, match=r"a backfill of the observers top of queue .* is in progress"
        ):
            admin.rebucket(db, name, 5)
        for wrong in (0, 4097, True, "8"):
            with pytest.raises(cq.errors.InvalidConfiguration, match="buckets to be 1 to 4,096"):
                admin.rebucket(db, name, wrong)  # type: ignore[arg-type]
        with pytest.raises(cq.errors.QueueNotConfigured):
            admin.rebucket(db, f"{name}-none", 5)


class TestPurge:
    """`purge`: all that was committed before goes, and observers hear of it."""

    def test_values_go_and_observers_are_told(self, db: Any, name: str) -> None:
        mirror = SeenInStore(db, name)
        app = app_with(db, name, mirror.observer, buckets=3)
        add(db, name, {f"k{number}": 1 for number in range(50)})
        drain(db, app=app)
        add(db, name, {"waits": 1})
        admin.purge(db, name)
        add(db, name, {"k1": 5, "later": 1})
        drain(db, app=app)

        assert_values(db, name, {"k1": 5, "later": 1})
        assert mirror.values == {"k1": 5, "later": 1}
        assert_drained(db, name)
        add(db, name, {"k1": 1})
        drain(db, app=app)
        assert_values(db, name, {"k1": 6, "later": 1})

    def test_what_was_set_aside_goes_too(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        encoded = config_of(db, name).key.encoder()("bad")
        transact(db, lambda tr: set_aside(tr, QueueKeys(name), encoded, KeyFailure("broken"), [1]))
        admin.purge(db, name)
        assert aside(db, name) == []  # at once: workers may be long in coming
        drain(db, name)
        assert aside(db, name) == []

    def test_what_was_set_aside_before_is_not_added_again(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=1)
        encoded = config_of(db, name).key.encoder()("bad")
        transact(db, lambda tr: set_aside(tr, QueueKeys(name), encoded, KeyFailure("broken"), [5]))
        admin.purge(db, name)
        assert retry_aside(db, name) == 0
        transact(db, lambda tr: set_aside(tr, QueueKeys(name), encoded, KeyFailure("broken"), [1]))
        assert retry_aside(db, name) == 1
        drain(db, name)
        assert_values(db, name, {"bad": 1})

    def test_a_key_that_an_observer_refuses_goes_and_is_noted(self, db: Any, name: str) -> None:
        seen = Seen({"bad"}, only_deletions=True)
        app = app_with(db, name, seen.observer, buckets=1)
        words = [f"k{number}" for number in range(40)]
        add(db, name, dict.fromkeys([*words, "bad"], 1))
        drain(db, app=app)
        admin.purge(db, name)
        drain(db, app=app)

        assert_values(db, name, {})
        assert seen.values == {"bad": 1}
        assert [each.error for each in aside(db, name)] == ["observer 'seen': RuntimeError: not bad"]

    def test_documents_that_are_stored_again_count_again(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        documents = Documents(cq.CombineQueue(name))
        documents.put(db, b"1", {"a": 5, "b": 2})
        drain(db, name)
        admin.purge(db, name)
        documents.put(db, b"1", {"a": 5, "b": 2})
        drain(db, name)
        assert_values(db, name, {"a": 5, "b": 2})
        documents.put(db, b"1", {"a": 3})
        drain(db, name)
        assert_values(db, name, {"a": 3})

    def test_a_second_purge_begins_anew(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=1)
        add(db, name, {f"k{number}": 1 for number in range(10)})
        drain(db, name)
        admin.purge(db, name)
        tr = db.create_transaction()
        Pass(tr, code_of(db, name), 0, PassPlan(max_report=3)).run()
        tr.commit().wait()
        add(db, name, {"between": 1})
        admin.purge(db, name)
        add(db, name, {"after": 1})
        drain(db, name)
        assert_values(db, name, {"after": 1})


class TestDelete:
    """`delete`: nothing of the queue is left, and whoever is under way notices."""

    def test_nothing_is_left_and_it_can_be_made_again(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.put_observer(db, name, top(1))
        add(db, name, {"a": 1})
        drain(db, name)
        add(db, name, {"a": 1})
        other = f"{name}-2"
        cq.configure(db, other)
        add(db, other, {"a": 1})
        begun = db.create_transaction()
        cq.CombineQueue(name).add(begun, {"a": 1})
        passing = db.create_transaction()
        Pass(passing, code_of(db, other), 0).run()
        admin.delete(db, name)

        assert not commits(begun)
        prefix = QueueKeys(name).prefix
        assert stored(db, (prefix, prefix + b"\xff")) == []
        with pytest.raises(cq.errors.QueueNotConfigured):
            add(db, name, {"a": 1})
        with pytest.raises(cq.errors.QueueNotConfigured):
            admin.delete(db, name)
        cq.configure(db, name, value=str, combiner="last")
        add(db, name, {"a": "new"})
        drain(db, name, other)
        assert_values(db, name, {"a": "new"})
        assert_values(db, other, {"a": 1})

    def test_a_pass_under_way_writes_nothing(self, db: Any, name: str) -> None:
        cq.configure(db, name, buckets=1)
        add(db, name, {"a": 1})
        tr = db.create_transaction()
        Pass(tr, code_of(db, name), 0).run()
        admin.delete(db, name)
        assert not commits(tr)
