"""Looking through a feed for what cannot be so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from cq.feeds import verify
from cq.feeds.feed import Feed
from cq.feeds.verify import verify_feed
from cq.keys.feed import bucket_of, encode_name, mark
from cq.observers.worker.worker import Worker
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact
from tests.kit.workers import running

ANN = encode_name("", "ann")
BOB = encode_name("", "bob")
CREW = encode_name("", "crew")


@pytest.fixture
def feed(db: Any, name: str) -> Feed:
    made = Feed(name)
    made.configure(db, numbers=True, unread=True)
    transact(db, lambda tr: made.append_many(tr, "ann", range(10)))
    transact(db, lambda tr: made.append_many(tr, "bob", range(3)))
    Worker(db, queues=[name]).drain()
    transact(db, lambda tr: made.append(tr, "ann", "no number yet"))
    transact(db, lambda tr: made.join(tr, "crew", "bob"))
    transact(db, lambda tr: made.append_to_group(tr, "crew", "not delivered yet"))
    return made


def found(db: Any, feed: Feed) -> list[str]:
    return [": ".join(each) for each in verify_feed(db, feed.name)]


def first_id(db: Any, feed: Feed, number: int) -> bytes:
    return transact(db, lambda tr: feed.read_numbered(tr, "ann", number - 1).messages[0].id)


@pytest.mark.parametrize("page", [3, 500])
def test_what_waits_is_no_difference(db: Any, feed: Feed, page: int) -> None:
    with patch.object(verify, "_PAGE", page), patch.object(scan_rows, "__defaults__", (1,)):
        assert found(db, feed) == []


DAMAGES: dict[str, tuple[Callable[[Feed, Any, bytes], object], str]] = {
    "a message lost": (
        lambda feed, tr, id_: tr.clear(feed.keys.message(ANN, id_)),
        "number 4 does not belong",
    ),
    "a number lost": (lambda feed, tr, id_: tr.clear(feed.keys.number(ANN, 4)), "number 4 does not belong"),
    "a message damaged": (lambda feed, tr, id_: tr.set(feed.keys.message(ANN, id_), b"?"), "not CBOR"),
    "a message emptied": (lambda feed, tr, id_: tr.set(feed.keys.message(ANN, id_), b""), "not CBOR"),
    "a join damaged": (
        lambda feed, tr, id_: tr.set(feed.keys.events_of(CREW, BOB)[0] + id_, b"?"),
        "group and user ('crew', 'bob'): an event of a group is not one that cq wrote",
    ),
    "a mark lost": (lambda feed, tr, id_: tr.clear(feed.keys.numbered(ANN)), "there are greater numbers"),
    "a mark damaged": (lambda feed, tr, id_: tr.set(feed.keys.numbered(ANN), b"?"), "not one that cq wrote"),
    "a note lost": (lambda feed, tr, id_: tr.clear(feed.keys.unnumbered(ANN)), "have no numbers"),
    "a notification lost": (
        lambda feed, tr, id_: tr.clear(feed.keys.numbering(bucket_of(ANN))),
        "no worker is notified",
    ),
    "a group forgotten": (lambda feed, tr, id_: tr.clear(feed.keys.undelivered(CREW)), "group 'crew'"),
    "removed twice": (
        lambda feed, tr, id_: tr.set(feed.keys.removed(ANN), mark(id_, 4)),
        "recorded as removed",
    ),
    "a count lost": (lambda feed, tr, id_: tr.clear(feed.keys.appended(ANN)), "0 messages were counted"),
    "a count of too many digits": (
        lambda feed, tr, id_: tr.set(feed.keys.appended(ANN), b"\x7f" * 2_000),
        "messages were counted",
    ),
    "waiters forgotten": (lambda feed, tr, id_: tr.set(feed.keys.latest(ANN), b"\0" * 10), "waiting readers"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(db: Any, feed: Feed, damage: str) -> None:
    do, expected = DAMAGES[damage]
    id_ = first_id(db, feed, 4)
    transact(db, lambda tr: do(feed, tr, id_))

    assert any(expected in each for each in found(db, feed))


def test_messages_that_get_their_numbers_meanwhile_are_no_difference(db: Any, feed: Feed) -> None:
    look = verify._check_messages

    def numbered_behind_it(*args: Any) -> Any:
        page = look(*args)
        if (page.number, page.position > first_id(db, feed, 10)) == (
            10,
            True,
        ):  # it ends with one without a number
            Worker(db, queues=[feed.name]).drain()
        return page

    transact(db, lambda tr: feed.append_many(tr, "ann", range(10)))
    with (
        patch.object(verify, "_PAGE", 3),
        patch.object(verify, "_check_messages", numbered_behind_it),
    ):
        assert found(db, feed) == []


def test_a_feed_in_use_has_no_differences(db: Any, feed: Feed) -> None:
    feed.configure(db, keep_last=5)
    worker = Worker(db, queues=[feed.name], beat=0.5)
    with running(worker), patch.object(verify, "_PAGE", 3):
        for number in range(30):
            transact(db, lambda tr: feed.append_many(tr, "ann", [number] * 4))  # noqa: B023
            transact(db, lambda tr: feed.append_to_group(tr, "crew", number))  # noqa: B023
            assert found(db, feed) == []
