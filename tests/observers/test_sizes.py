"""Sizes of the transactions of exports, feeds and moves between cells, whatever the sizes of names, keys and values."""

from __future__ import annotations

from functools import partial
from itertools import count, islice
from typing import Any

import pytest

from cq.encoding.hashing import bucket_of
from cq.feeds.feed import Feed
from cq.keys.feed import bucket_of as name_bucket
from cq.keys.feed import encode_name
from cq.links import CannotSend, Changes
from cq.observers.links.log import BUCKETS, encoded_key
from cq.store.transact import transact
from tests.kit.sized import MOST, Sized, words
from tests.links.linkhelpers import add, entries_aside, send_all, waits
from tests.observers.feeds.feedtasks import delivering_tasks, numbering_tasks, trimming_tasks

pytestmark = pytest.mark.sampled(2)

LONG = 990
"""Letters of the names of receivers and groups, nearly as many as a name may have."""


def finish(tasks: Any) -> None:
    """Run tasks until they have nothing to do."""
    for task in tasks:
        while task.run() >= 0.0:
            pass


def join(tr: Any, feed: Feed, group: str, users: list[str]) -> None:
    for user in users:
        feed.join(tr, group, user)


@pytest.mark.parametrize(("size", "number"), [(10, 1_200), (89_000, 60)])
def test_entries_that_cannot_be_exported_are_set_aside_in_bounded_transactions(
    db: Any, name: str, size: int, number: int
) -> None:
    """Those of one bucket, behind many that can be exported: so many failures stop no export."""
    bad = words(size, number)
    keys = (key for key in count() if bucket_of(encoded_key(key), BUCKETS) == 0)
    for _ in range(2):
        add(db, name, *((key, "good") for key in islice(keys, 5_000)))
    pairs, step = list(zip(keys, bad, strict=False)), max(1, 400_000 // size)
    for start in range(0, number, step):
        add(db, name, *pairs[start : start + step])
    refused = set(bad)

    def send(batch: Changes) -> None:
        errors = {entry.sequence: "x" * 2_000 for entry in batch if entry.value in refused}
        if errors:
            raise CannotSend("some cannot", errors)

    sized = Sized(db)
    send_all(sized, name, send)

    assert 0 < max(sized.sizes) <= MOST
    assert {entry.value for entry in entries_aside(db, name)} == refused
    assert waits(db, name) == 0


@pytest.mark.parametrize(("size", "messages", "members"), [(10, 1, 80), (10, 60, 12), (89_000, 3, 12)])
def test_a_feed_with_long_names_delivers_numbers_and_removes_in_bounded_transactions(
    db: Any, name: str, size: int, messages: int, members: int
) -> None:
    """Of groups of one bucket, which one transaction serves together."""
    feed = Feed(name)
    config = feed.configure(db, numbers=True, keep_last=1)
    users = words(LONG, members)
    groups = [f"g{word}" for word in words(LONG, 100) if name_bucket(encode_name("group", f"g{word}")) == 0][
        :8
    ]
    for group in groups:
        transact(db, partial(join, feed=feed, group=group, users=users))
    for number in range(messages):
        for group in groups:
            transact(db, lambda tr: feed.append_to_group(tr, group, f"{number:0{size}}"))  # noqa: B023
    sized = Sized(db)
    finish(delivering_tasks(sized, config))
    assert 0 < max(sized.sizes) <= MOST

    sized.sizes.clear()
    finish(numbering_tasks(sized, config))
    assert 0 < max(sized.sizes) <= MOST

    sized.sizes.clear()
    (trimming,) = trimming_tasks(sized, config)
    while trimming.run() == 0.0:
        pass
    assert 0 < max(sized.sizes) <= MOST
    for user in users:
        found = transact(db, lambda tr: feed.read_numbered(tr.snapshot, user, limit=10_000))  # noqa: B023
        assert [each.number for each in found.messages] == [len(groups) * messages]


def test_many_receivers_with_long_names_get_numbers_in_bounded_transactions(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True)
    users = words(LONG, 200)
    for number in range(10):
        transact(db, lambda tr: [feed.append(tr, user, number) for user in users])  # noqa: B023
    sized = Sized(db)
    finish(numbering_tasks(sized, config))

    assert 0 < max(sized.sizes) <= MOST
    for user in users:
        found = transact(db, lambda tr: feed.read_numbered(tr.snapshot, user))  # noqa: B023 - runs at once
        assert [each.number for each in found.messages] == list(range(1, 11))
