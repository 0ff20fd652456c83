"""The parts of the demo of tags: its events, what it compares with, and that it notices what differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cq
from cq import testing
from cq.cli.demos.harness.counted_database import CountedDatabase, Meter, WriteCounts
from cq.cli.demos.harness.crew import DemoFailed
from cq.cli.demos.tags import demo as tags
from cq.cli.demos.tags import events as tagevents
from cq.cli.demos.tags.events import TagEvent, TagRecount
from cq.cli.demos.tags.roles import INCREMENTS, QUEUE
from cq.observers.top.cloud import CloudEntry
from cq.observers.worker.worker import Worker
from cq.store.transact import transact


def test_generated_events_are_those_of_the_seed_and_lose_only_what_is_there() -> None:
    events = list(tagevents.generated(5_000, Random(1)))

    assert events == list(tagevents.generated(5_000, Random(1)))
    has: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entity, tag, by in events:
        has[entity][tag] += by
        assert has[entity][tag] in (0, 1)


def test_partitions_hold_all_events_of_an_entity_in_order(tmp_path: Path) -> None:
    events = [TagEvent(f"entity {number % 10}", f"tag {number}", 1) for number in range(100)]
    paths = [tmp_path / str(number) for number in range(3)]

    recount = tagevents.part(events, paths)

    parts = [[tag for tag, _ in tagevents.of_partition(path)] for path in paths]
    assert recount == TagRecount(100, {event.tag: 1 for event in events})
    assert sorted(tag for part in parts for tag in part) == sorted(event.tag for event in events)
    for number in range(10):
        own = [event.tag for event in events if event.entity == f"entity {number}"]
        assert [tag for part in parts for tag in part if tag in own] == own


def test_what_one_would_do_instead_is_counted() -> None:
    changes = [("a", 1), ("b", 1), ("a", 1), ("b", -1), ("c", 1)]

    assert tagevents.merged_writes(changes, 1) == (WriteCounts(5, 5), 1)
    assert tagevents.merged_writes(changes, 2) == (WriteCounts(3, 5), 2)
    assert tagevents.merged_writes([], 2) == (WriteCounts(0, 0), 0)


def test_writes_are_counted_when_they_are_committed(db: Any) -> None:
    counted = CountedDatabase(db, Meter())

    transact(counted, lambda tr: tr.get(b"a").value)
    assert counted.meter.read() == WriteCounts(0, 0)

    def write(tr: cq.Transaction) -> None:
        tr.set(b"a", b"1")
        tr.clear_range(b"b", b"c")

    transact(counted, write)
    assert counted.meter.read() == WriteCounts(1, 2)


@pytest.fixture
def done(tmp_path: Path) -> Any:
    """A store in which a demo with the events [a, a, b] has come to its end."""
    db: Any = cq.open(f"embedded:{tmp_path / 'demo.db'}")
    tags.make_queue(db, 2)
    transact(db, lambda tr: cq.CombineQueue(QUEUE).add(tr, {"a": 2, "b": 1}))
    transact(db, lambda tr: tr.add(INCREMENTS, (3).to_bytes(8, "little")))
    Worker(db).drain()
    yield db
    db.close()


def _entries(db: Any) -> tuple[CloudEntry, ...]:
    cloud = tags.published(db)
    assert cloud is not None
    return cloud.entries


def test_a_result_that_is_right_passes(done: Any) -> None:
    tags.check_result(done, TagRecount(3, {"a": 2, "b": 1}), _entries(done), 2)


@pytest.mark.parametrize(
    ("recount", "said"),
    [
        (TagRecount(3, {"a": 3, "b": 1}), "'a': 2 instead of 3"),
        (TagRecount(3, {"a": 2}), "'b': 1 instead of None"),
        (TagRecount(4, {"a": 2, "b": 1}), "3 increments were committed, and there are 4 events"),
    ],
)
def test_a_count_that_is_wrong_is_named(done: Any, recount: TagRecount, said: str) -> None:
    with pytest.raises(DemoFailed, match=said):
        tags.check_result(done, recount, _entries(done), 2)


def test_a_cloud_that_is_behind_is_noticed(done: Any) -> None:
    cloud = _entries(done)
    transact(done, lambda tr: cq.CombineQueue(QUEUE).add(tr, {"b": 5}))
    testing.drain(done, QUEUE)

    with pytest.raises(DemoFailed, match="not the top"):
        tags.check_result(done, TagRecount(3, {"a": 2, "b": 6}), cloud, 2)


def test_a_queue_of_an_earlier_demo_is_made_anew(done: Any) -> None:
    tags.make_queue(done, 2)

    assert dict(cq.CombineQueue(QUEUE).scan(done)) == {}
    assert tags.committed(done) == 0
    assert tags.published(done) is None
