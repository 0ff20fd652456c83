"""What waits in a queue, and for how long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import cq
from cq import admin
from cq.admin import queue_status as module
from cq.admin.queue_status import QueueStatus, current_version, is_drained, status
from cq.errors import QueueNotConfigured
from cq.store import sizes
from cq.testing import drain
from tests.kit.observing import Seen, app_with
from tests.kit.queues import add, configured


def status_of(db: Any, name: str) -> QueueStatus:
    (found,) = status(db, name)
    return found


def test_an_empty_queue_has_nothing_waiting(db: Any, name: str) -> None:
    config = configured(db, name, buckets=3)

    assert status_of(db, name) == QueueStatus(
        name=name,
        settings=config.settings(),
        paused=False,
        reason="",
        waiting_buckets=0,
        rows=0,
        bytes=0,
        exact=True,
        oldest_seconds=None,
        outstanding={},
        full="",
        former_buckets=None,
        backfilling={},
        aside=0,
    )


def test_rows_buckets_and_age_are_those_queued(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=2)
    add(db, name, {f"key {number}": 1 for number in range(100)})
    first = current_version(db)
    add(db, name, {"one more": 1})

    before = current_version(db)
    found = status_of(db, name)

    assert (found.waiting_buckets, found.rows, found.exact) == (2, 3, True)
    assert found.bytes > 100 * len("key 99")
    assert found.oldest_seconds is not None
    assert found.oldest_seconds >= (before - first) / 1e6
    drain(db, name)
    assert (status_of(db, name).rows, status_of(db, name).oldest_seconds) == (0, None)


def test_buckets_that_wait_far_longer_than_others_stand_out(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OUTSTANDING_SECONDS", 0.0)
    cq.configure(db, name, buckets=8)
    add(db, name, {"a": 1, "b": 1})
    assert len(status_of(db, name).outstanding) == 2
    add(db, name, {f"key {number}": 1 for number in range(100)})
    while status_of(db, name).outstanding:  # until the others have waited long enough, too
        pass

    assert status_of(db, name).waiting_buckets == 8


def test_what_is_under_way_with_a_queue_is_shown(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=4)
    add(db, name, {f"key {number}": 1 for number in range(100)})
    drain(db, name)
    admin.put_observer(db, name, admin.ObserverSpec("late", 1))
    assert status_of(db, name).backfilling == {"late": 0}
    drain(db, name, app=Seen(name="late").app(name))
    assert status_of(db, name).backfilling == {}
    admin.rebucket(db, name, 2)
    assert status_of(db, name).former_buckets == 4


def test_what_was_set_aside_is_counted(db: Any, name: str) -> None:
    app = app_with(db, name, Seen("ab").observer)
    add(db, name, {"a": 1, "b": 1})
    drain(db, name, app=app)

    assert status_of(db, name).aside == 2


def test_a_deep_backlog_is_estimated(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "COUNTED_BYTES", 10_000)
    cq.configure(db, name, buckets=1)
    for _ in range(50):
        add(db, name, {f"key {number}": 1 for number in range(100)})

    found = status_of(db, name)

    assert not found.exact
    assert found.bytes > 10_000
    assert 5 <= found.rows <= 500, "up to a few times off"


def test_all_queues_are_listed_and_one_that_is_missing_is_an_error(db: Any, name: str) -> None:
    cq.configure(db, name)
    cq.configure(db, f"{name}-2")

    names = [each.name for each in status(db)]

    assert names == sorted(names)
    assert {name, f"{name}-2"} <= set(names)
    with pytest.raises(QueueNotConfigured):
        status(db, f"{name}-3")


def test_a_drained_queue_is_said_at_once_and_another_when_something_happens(db: Any, name: str) -> None:
    cq.configure(db, name)
    assert is_drained(db, name, wait="1m")
    add(db, name, {"a": 1})
    assert not is_drained(db, name)
    waited = threading.Thread(target=is_drained, args=(db, name, 60))
    waited.start()
    drain(db, name)
    waited.join(60)

    assert not waited.is_alive(), "it waits for the pass, not for the time"
    assert is_drained(db, name)


def test_versions_go_on_without_commits_of_others(db: Any) -> None:
    first, second = current_version(db), current_version(db)

    assert first < second
