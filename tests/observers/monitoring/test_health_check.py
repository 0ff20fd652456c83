"""Health: every line of it, and none when all is well."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import cq
from cq import admin
from cq.keys import membership as module
from cq.observers.monitoring.health_check import health
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from cq.testing import drain
from tests.kit.clocks import set_clock
from tests.kit.faults import TIMED_OUT, FailedCalls
from tests.kit.queues import add, combine_all
from tests.kit.stores import db as db


@pytest.fixture
def alive(db: Any) -> Membership:
    """A worker that lives, on this host."""
    membership = Membership(db, every=600.0)
    membership.beat(MemberReport())
    return membership


def test_nothing_is_wrong_when_a_worker_lives_and_nothing_waits(db: Any, alive: Membership) -> None:
    cq.configure(db, "words")
    assert health(db) == health(db, here=True) == []


def test_a_worker_that_beats_no_more_does_not_count(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
    Membership(db, every=1e-6).beat(MemberReport())
    (problem,) = health(db)
    assert re.fullmatch(r"no worker is alive: the latest beat is \d+ s old", problem)


def test_a_worker_of_another_host_does_not_count_for_this_one(
    db: Any, alive: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert health(db) == []
    assert health(db, here=True) == ["no worker is alive on elsewhere: none has registered"]


def test_a_queue_in_which_updates_wait_too_long_is_named(db: Any, alive: Membership) -> None:
    cq.configure(db, "words")
    cq.configure(db, "paused")
    add(db, "words", {"a": 1})
    add(db, "paused", {"a": 1})
    admin.pause(db, "paused")
    time.sleep(0.01)
    assert health(db) == []
    (problem,) = health(db, max_age=0.001)
    assert re.fullmatch(r"queue 'words': an update has waited for \d+ s, longer than 0.001 s", problem)


def test_a_queue_and_its_levels_are_one_problem(db: Any, alive: Membership) -> None:
    cq.configure(db, "hits", rollup="1m:forever,1h:forever")
    add(db, "hits", {"a": 1})
    time.sleep(0.01)
    (problem,) = health(db, max_age=0.001)
    assert re.fullmatch(r"queue 'hits': an update has waited for \d+ s, longer than 0.001 s", problem)
    combine_all(db, "hits")
    time.sleep(0.01)
    (problem,) = health(db, max_age=0.001)
    assert problem.startswith("queue 'hits': an update has waited for ")
    assert problem.endswith(", longer than 0.001 s, in hits.1h, hits.1m")


def test_a_window_that_nobody_takes_out_of_is_named(db: Any, alive: Membership) -> None:
    cq.configure(db, "words", window=(60, 1))
    with set_clock() as clock:
        add(db, "words", {"a": 1})
        drain(db)
        clock.now += 61
        assert health(db) == []
        clock.now += 61
        assert health(db) == [
            "queue 'words': updates due to expire from its window have waited for 61 s, longer than 60 s"
        ]


def test_a_store_that_does_not_answer_is_said(db: Any) -> None:
    (said,) = health(FailedCalls(db, TIMED_OUT, what="add_write_conflict_key", left=1))
    assert said.startswith("the store does not answer within 5 s: ")
