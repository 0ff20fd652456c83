"""A queue's changes in a feed."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.feeds.feed import Feed
from cq.observers.feeds.observer import feed_spec
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.queues import buckets_of, configured, put_built_in
from tests.kit.workers import running


def told(db: Any, feed: Feed, receiver: str) -> list[Any]:
    page = transact(db, lambda tr: feed.read(tr.snapshot, receiver, limit=10_000))
    return [message.body for message in page.messages]


def add(db: Any, name: str, **updates: Any) -> None:
    transact(db, lambda tr: cq.CombineQueue(name).add(tr, updates))


def test_every_change_is_told_in_commit_order_for_each_key(db: Any, name: str) -> None:
    feed = Feed(f"{name}-changes")
    feed.configure(db)
    cq.configure(db, name, observers=[feed_spec(feed.name)])
    for number in (1, 2, -3):
        add(db, name, a=number, b=1)
        drain(db, name)

    found = told(db, feed, name)

    assert [each for each in found if each[0] == "a"] == [["a", None, 1], ["a", 1, 3], ["a", 3, None]]
    assert [each for each in found if each[0] == "b"] == [["b", None, 1], ["b", 1, 2], ["b", 2, 3]]


def test_a_feed_that_comes_later_is_told_of_all_values_first(db: Any, name: str) -> None:
    feed = Feed(f"{name}-changes")
    feed.configure(db)
    config = configured(db, name)
    add(db, name, a=1)
    drain(db, name)

    put_built_in(db, config, feed_spec(feed.name, receiver="billing"))
    drain(db, name)
    add(db, name, a=1)
    drain(db, name)

    assert told(db, feed, "billing") == [["a", None, 1], ["a", 1, 2]]


def test_a_change_that_is_too_large_is_told_by_its_key(db: Any, name: str) -> None:
    feed = Feed(f"{name}-changes")
    feed.configure(db)
    cq.configure(db, name, value=str, combiner="last", observers=[feed_spec(feed.name)])
    for letter in "xy":
        add(db, name, a=letter * 50_000)
        drain(db, name)

    assert [len(each) for each in told(db, feed, name)] == [3, 1]


def test_a_queue_whose_feed_is_not_there_waits_for_it(db: Any, name: str) -> None:
    feed = Feed(f"{name}-changes")
    config = configured(db, name)
    with pytest.raises(cq.errors.FeedNotConfigured):
        put_built_in(db, config, feed_spec(feed.name))
    with pytest.raises(cq.errors.FeedNotConfigured):
        cq.configure(db, name, observers=[feed_spec(feed.name)])
    feed.configure(db)
    cq.configure(db, name, observers=[feed_spec(feed.name)])
    feed.delete(db)
    add(db, name, a=1)
    with pytest.raises(cq.errors.ConfigurationError, match="cq feed configure"):
        Worker(db, queues=[name]).drain()
    assert told_nothing(db, name)

    feed.configure(db)
    Worker(db, queues=[name]).drain()

    assert told(db, feed, name) == [["a", None, 1]]


def test_no_key_is_set_aside_if_the_feed_is_deleted_while_a_worker_combines(db: Any, name: str) -> None:
    feed = Feed(f"{name}-changes")
    feed.configure(db)
    cq.configure(db, name, observers=[feed_spec(feed.name)])
    add(db, name, a=1)
    bucket = buckets_of(db, name)[0]
    feed.delete(db)
    with pytest.raises(cq.errors.FeedNotConfigured):
        bucket.combine()
    assert told_nothing(db, name)

    feed.configure(db)
    with running(Worker(db, queues=[name])):
        for old in (None, 1, 2):
            assert [each.body[1] for each in feed.wait(db, name, timeout=60).messages] == [old]
            feed.delete(db)
            add(db, name, a=1)
            feed.configure(db)


def told_nothing(db: Any, name: str) -> bool:
    return transact(db, lambda tr: cq.CombineQueue(name).get(tr.snapshot, "a")) is None
