"""Forgetting operation ids: only once nothing can depend on them."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.keys import QueueKeys
from cq.queue import operation_ids
from cq.queue.operation_ids import Trim
from cq.store.transact import transact
from cq.testing import assert_values, drain
from tests.kit.faults import Overtaken
from tests.kit.queues import add, stored


@pytest.fixture
def combined(db: Any, name: str) -> str:
    """A queue of which one operation is combined, with later commits, so that its id is older than now."""
    cq.configure(db, name, buckets=2)
    add(db, name, {"a": 1}, once="op")
    add(db, name, {"b": 1})
    drain(db, name)
    return name


def trim(db: Any, name: str, seconds: float = 0.0) -> int:
    """Forget all ids of before so many seconds that can be; how many markers went."""
    trimming = Trim(db, name, seconds)
    while trimming.step():
        pass
    return trimming.removed


def remembered(db: Any, name: str) -> int:
    """Of how many emitters there is something."""
    return len(stored(db, QueueKeys(name).emitters()))


def move_on(db: Any, name: str) -> None:
    """Combine all there is, with a later commit, so that what was before is older than now."""
    drain(db, name)
    add(db, name, {"b": 1})
    drain(db, name)


def emit(db: Any, name: str) -> None:
    """Commit a flush of an emitter of its own."""
    with cq.Emitter(cq.CombineQueue(name), db) as emitter:
        emitter.emit("a")


def left(db: Any, name: str) -> list[bytes]:
    queue = QueueKeys(name)
    return [queue.parse_marker(key)[0] for key, _ in stored(db, queue.markers())]


def test_an_id_that_nothing_depends_on_is_forgotten(db: Any, combined: str) -> None:
    assert trim(db, combined, operation_ids.REMEMBER_SECONDS) == 0
    assert trim(db, combined) == 1
    assert left(db, combined) == []
    add(db, combined, {"a": 1}, once="op")
    drain(db, combined)
    assert_values(db, combined, {"a": 2, "b": 1})


def test_it_is_kept_while_a_later_try_is_queued(db: Any, combined: str) -> None:
    """Without the first marker the later try would count."""
    add(db, combined, {"a": 1}, once="op")
    add(db, combined, {"b": 1})

    assert trim(db, combined) == 0
    drain(db, combined)
    assert_values(db, combined, {"a": 1, "b": 2})
    assert trim(db, combined) == 2


def test_it_is_kept_while_a_row_is_in_a_bucket_whose_notification_is_lost(db: Any, combined: str) -> None:
    add(db, combined, {"a": 1}, once="op")
    transact(db, lambda tr: tr.clear_range(*QueueKeys(combined).notifications()))

    assert trim(db, combined) == 0
    add(db, combined, {"b": 1})  # notifies the bucket
    drain(db, combined)
    assert_values(db, combined, {"a": 1, "b": 2})


def test_it_is_kept_when_another_try_commits_meanwhile(db: Any, combined: str) -> None:
    meanwhile = Overtaken(db, lambda: add(db, combined, {"a": 1}, once="op"))

    assert trim(meanwhile, combined) == 0
    assert meanwhile.is_done
    assert len(left(db, combined)) == 2
    drain(db, combined)
    assert_values(db, combined, {"a": 1, "b": 1})


@pytest.mark.parametrize("page", [2, 3, 1000])
def test_ids_with_many_tries_are_seen_whole_whatever_the_pages(
    db: Any, combined: str, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    for number in range(7):
        for _ in range(1 + number % 2):
            add(db, combined, {"c": 1}, once=f"op {number}")
    add(db, combined, {"b": 1})
    drain(db, combined)
    add(db, combined, {"c": 1}, once="op 3")
    monkeypatch.setattr(operation_ids, "_PAGE", page)

    trim(db, combined)

    assert set(left(db, combined)) - {b"op 1", b"op 5"} == {b"op 3"}
    assert len(left(db, combined)) >= 3
    drain(db, combined)
    assert_values(db, combined, {"a": 1, "b": 2, "c": 7})


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_emitters_are_forgotten_long_after_their_last_flush(
    db: Any, combined: str, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(operation_ids, "_PAGE", page)
    for _ in range(5):
        emit(db, combined)
    move_on(db, combined)

    assert trim(db, combined, operation_ids.REMEMBER_SECONDS) == 0
    assert remembered(db, combined) == 5
    trim(db, combined)
    assert remembered(db, combined) == 0


def test_an_emitter_goes_on_when_it_is_forgotten(db: Any, combined: str) -> None:
    with cq.Emitter(cq.CombineQueue(combined), db) as emitter:
        emitter.emit("a")
        emitter.flush()
        move_on(db, combined)
        trim(db, combined)
        assert remembered(db, combined) == 0
        emitter.emit("a")

    assert remembered(db, combined) == 1
    drain(db, combined)
    assert_values(db, combined, {"a": 3, "b": 2})


def test_an_emitter_that_flushes_meanwhile_is_not_forgotten(db: Any, name: str) -> None:
    cq.configure(db, name)
    with cq.Emitter(cq.CombineQueue(name), db) as emitter:

        def emit() -> None:
            emitter.emit("a")
            emitter.flush()

        emit()
        move_on(db, name)
        meanwhile = Overtaken(db, emit)

        assert trim(meanwhile, name) == 0
        assert meanwhile.is_done
    assert remembered(db, name) == 1


def test_what_no_emitter_has_written_is_left_alone(db: Any, combined: str) -> None:
    where = QueueKeys(combined).emitter(b"x")
    transact(db, lambda tr: tr.set(where, b"y"))

    trim(db, combined)
    assert remembered(db, combined) == 1
