"""The changelog of a queue: pages from positions, and positions that do not count any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq.feeds.feed import Feed
from cq.observers.feeds.changelog import (
    BEGIN,
    Changelog,
    ChangelogPage,
    change_of,
    check_position,
    read_changelog,
)
from cq.observers.feeds.observer import feed_spec
from cq.observers.feeds.trim import FeedTrimTask
from cq.store.transact import transact
from cq.testing import drain

MANY = 1_000
BYTES = 1_000_000


@pytest.fixture
def feed(db: Any, name: str) -> Feed[Any]:
    """The feed of a queue."""
    made = Feed[Any](name)
    made.configure(db)
    cq.configure(db, name, observers=[feed_spec(name)])
    return made


def read(db: Any, name: str, call: Callable[[Changelog, Any], Any]) -> Any:
    return transact(db, lambda tr: call(read_changelog(tr.snapshot, name), tr.snapshot))


def page_after(db: Any, name: str, position: bytes, limit: int = MANY, size: int = BYTES) -> ChangelogPage:
    found: ChangelogPage = read(db, name, lambda log, tr: log.read(tr, position, limit, size))
    return found


def append(db: Any, feed: Feed[Any], *messages: Any) -> None:
    transact(db, lambda tr: feed.append_many(tr, feed.name, messages))


def trim(db: Any, feed: Feed[Any], keep: int) -> None:
    """Remove messages until the last `keep` are left."""
    config = feed.configure(db, keep=1e-6)
    while page_after(db, feed.name, BEGIN, 1).messages:  # until the store's clock has moved on
        FeedTrimTask(db, config).run()
    feed.configure(db, keep=0)
    append(db, feed, *([f"kept {number}"] for number in range(keep)))


def test_pages_continue_from_positions_in_commit_order(db: Any, name: str, feed: Feed[Any]) -> None:
    for number in range(5):
        cq.transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"a": 1, f"b{number}": 1}))  # noqa: B023
        drain(db, name)

    position, found = BEGIN, list[Any]()
    while True:
        page = page_after(db, name, position, limit=3)
        assert page.begin == position
        found += map(change_of, page.messages)
        position = page.messages[-1].id
        if not page.more:
            break

    of_a = [(each.old, each.new) for each in found if each.key == "a"]
    assert of_a == [(None, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert len(found) == 10
    assert page_after(db, name, position) == ChangelogPage(position)
    assert read(db, name, lambda log, tr: log.begin(tr)) == BEGIN
    assert check_position(position.hex()) == position


def test_a_reader_of_later_changes_only_begins_after_the_latest_one(
    db: Any, name: str, feed: Feed[Any]
) -> None:
    def ends() -> tuple[bytes, bytes]:
        found: tuple[bytes, bytes] = read(db, name, lambda log, tr: (log.begin(tr), log.end(tr)))
        return found

    assert ends() == (BEGIN, BEGIN)
    append(db, feed, *([str(number), None, number] for number in range(5)))
    last = page_after(db, name, BEGIN).messages[-1].id

    assert ends() == (BEGIN, last)
    trim(db, feed, 0)
    assert ends() == (last, last)
    assert page_after(db, name, last) == ChangelogPage(last)


def test_a_position_counts_while_no_later_change_was_removed(db: Any, name: str, feed: Feed[Any]) -> None:
    append(db, feed, *([str(number), None, number] for number in range(3)))
    before, last = [message.id for message in page_after(db, name, BEGIN).messages][-2:]
    trim(db, feed, 2)

    for lost in (BEGIN, before):
        assert page_after(db, name, lost).begin == last
    kept = page_after(db, name, last)
    assert [message.body for message in kept.messages] == [["kept 0"], ["kept 1"]]
    assert kept.begin == last
    assert page_after(db, name, kept.messages[0].id).messages == kept.messages[1:]


def test_a_position_of_another_life_of_the_feed_does_not_count(db: Any, name: str, feed: Feed[Any]) -> None:
    append(db, feed, ["a", None, 1])
    position = page_after(db, name, BEGIN).messages[-1].id
    feed.delete(db)
    with pytest.raises(cq.errors.FeedNotConfigured):
        page_after(db, name, position)
    feed.configure(db)
    append(db, feed, ["a", 1, 2])

    page = page_after(db, name, position)
    assert page.begin == BEGIN
    assert [message.body for message in page.messages] == [["a", 1, 2]]
    transact(db, lambda tr: feed.forget(tr, name))
    assert page_after(db, name, page.messages[-1].id).begin == BEGIN
    assert page_after(db, name, b"\xff" * len(BEGIN)).begin == BEGIN


def test_messages_that_are_no_changes_are_told_apart(db: Any, name: str, feed: Feed[Any]) -> None:
    append(db, feed, ["a", 1, None], ["large"], "hello", [1, 2], {})

    found = [change_of(message) for message in page_after(db, name, BEGIN).messages]

    assert found == [cq.Change("a", 1, None), cq.Change("large", None, None), None, None, None]


def test_a_queue_without_a_changelog_of_its_own_says_what_to_do(db: Any, name: str, feed: Feed[Any]) -> None:
    plain, shared = f"{name}-plain", f"{name}-shared"
    cq.configure(db, plain)
    with pytest.raises(
        cq.errors.ConfigurationError, match=f"run `cq feed configure .* and `cq configure {plain}"
    ):
        page_after(db, plain, BEGIN)
    cq.configure(db, shared, observers=[feed_spec(name, receiver="all")])
    with pytest.raises(cq.errors.InvalidConfiguration, match="omit `receiver`"):
        page_after(db, shared, BEGIN)
    with pytest.raises(cq.errors.QueueNotConfigured):
        page_after(db, f"{name}-none", BEGIN)


@pytest.mark.parametrize("text", ["", "0", "00", "z" * 36, "0" * 35, "0" * 38, "\N{SNOWFLAKE}"])
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(cq.InvalidData, match="36 hexadecimal digits"):
        check_position(text)
