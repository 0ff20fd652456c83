"""Pauses, priorities, drains and limits of a queue include the levels of its roll-up."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import admin
from cq.admin.configure import change, requested
from cq.admin.flags import pause_failing
from cq.admin.queue_status import is_drained
from cq.config.flags import Flags, read_flags
from cq.errors import FeedNotConfigured, InvalidConfiguration, QueueFull, QueueNotConfigured
from cq.feeds.feed import Feed
from cq.queue import limits
from cq.queue.limits import compare
from cq.store.transact import transact
from tests.kit.faults import UNKNOWN, FailedCalls
from tests.kit.queues import add, combine_all

LEVELS = "1m:forever,1h:forever"


def flags(db: Any, name: str) -> list[Flags]:
    """The flags of the queue, of its minutes and of its hours."""
    everything = [name, f"{name}.1m", f"{name}.1h"]
    return transact(db, lambda tr: [read_flags(tr, each) for each in everything])


def test_a_pause_and_its_end_include_the_levels(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    admin.pause(db, name, "a move", duration=1e6)
    assert [(each.paused, each.reason) for each in flags(db, name)] == [(True, "a move")] * 3
    assert len({each.until for each in flags(db, name)}) == 1
    admin.resume(db, name)
    assert flags(db, name) == [Flags()] * 3


def test_a_level_is_paused_and_resumed_alone(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    admin.pause(db, f"{name}.1h")
    assert [each.paused for each in flags(db, name)] == [False, False, True]
    admin.pause(db, name)
    admin.resume(db, f"{name}.1h")
    assert [each.paused for each in flags(db, name)] == [True, True, False]


def test_a_queue_whose_keys_fail_is_paused_without_its_levels(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    pause_failing(db, name, "a broken observer")
    assert [each.paused for each in flags(db, name)] == [True, False, False]


@pytest.mark.parametrize("how", ["prioritize", "configure"])
def test_a_priority_includes_the_levels(db: Any, name: str, how: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    if how == "prioritize":
        admin.prioritize(db, name, 50)
    else:
        change(db, name, requested(priority=50))
    admin.prioritize(db, f"{name}.1m", 3)
    assert [each.priority for each in flags(db, name)] == [50, 3, 50]


def test_a_new_level_has_the_pause_and_the_priority_of_its_queue(db: Any, name: str) -> None:
    cq.configure(db, name)
    admin.pause(db, name, "a move")
    admin.prioritize(db, name, 50)
    admin.limit(db, name, max_bytes=5)
    cq.configure(db, name, rollup=LEVELS)
    assert flags(db, name)[1:] == [Flags(paused=True, reason="a move", priority=50)] * 2


def test_a_queue_is_drained_when_its_levels_are(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    add(db, name, {"a": 1})
    combine_all(db, name)
    assert not is_drained(db, name)
    combine_all(db, f"{name}.1m")  # which adds to the hours
    assert not is_drained(db, name)
    assert is_drained(db, f"{name}.1m")
    combine_all(db, f"{name}.1h")
    assert is_drained(db, name)


def test_a_limit_counts_what_is_queued_in_the_levels(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECK_SECONDS", 0.0)
    cq.configure(db, name, rollup=LEVELS)
    admin.limit(db, name, max_bytes=1)
    assert compare(db, name) == ""
    add(db, name, {"a": 1})
    combine_all(db, name)
    combine_all(db, f"{name}.1m")
    assert (
        compare(db, name) == "more than 1 bytes are queued in it and its levels"
    )  # only the hours have updates
    with pytest.raises(QueueFull, match="in it and its levels: try again later"):
        add(db, name, {"a": 1})
    combine_all(db, f"{name}.1h")
    assert compare(db, name) == ""
    add(db, name, {"a": 1})


def test_a_level_has_no_limit_of_its_own(db: Any, name: str) -> None:
    cq.configure(db, name, rollup=LEVELS)
    with pytest.raises(InvalidConfiguration, match=f"limit queue '{name}', which includes it"):
        admin.limit(db, f"{name}.1m", max_bytes=5)


def test_a_deletion_whose_result_is_unknown_is_done(db: Any, name: str) -> None:
    """The next try finds no queue, and no feed: it has been deleted."""
    cq.configure(db, name)
    feed = Feed[Any](name)
    feed.configure(db)
    failing = FailedCalls(db, UNKNOWN, is_made=True, left=1)
    admin.delete(failing, name)
    failing.left = 1
    feed.delete(failing)

    with pytest.raises(QueueNotConfigured):
        admin.delete(failing, name)
    with pytest.raises(FeedNotConfigured):
        feed.delete(failing)
