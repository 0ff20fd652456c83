"""Feeds as applications use them: appends, reads, positions, waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cq
from cq.errors import InvalidConfiguration
from cq.feeds.config import read_feed_config
from cq.feeds.feed import MAX_MESSAGE_BYTES, Feed, FeedPage
from cq.keys import prefix_end
from cq.keys.feed import FeedKeys, decode_name, encode_name, first_id_at
from cq.observers.feeds.trim import FeedTrimTask
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.kit.faults import WrappedDatabase
from tests.kit.queues import commits


@pytest.fixture
def feed(db: Any, name: str) -> Feed:
    made = Feed(name)
    made.configure(db)
    return made


def append(db: Any, feed: Feed, receiver: Any, *messages: Any) -> None:
    for message in messages:
        transact(db, lambda tr: feed.append(tr, receiver, message))  # noqa: B023


def read(db: Any, feed: Feed, receiver: Any, after: bytes = b"", limit: int = 100) -> FeedPage:
    return transact(db, lambda tr: feed.read(tr.snapshot, receiver, after, limit))


def bodies(page: FeedPage) -> list[Any]:
    return [message.body for message in page.messages]


def test_messages_are_read_in_commit_order_from_a_position(db: Any, feed: Feed) -> None:
    append(db, feed, "ann", "one", "two", "three", "four", "five")

    first = read(db, feed, "ann", limit=2)
    second = read(db, feed, "ann", first.position, limit=3)

    assert (bodies(first), first.more) == (["one", "two"], True)
    assert (bodies(second), second.more) == (["three", "four", "five"], False)
    assert read(db, feed, "ann", second.position) == FeedPage((), second.position, False, False)
    ids = [message.id for message in (*first.messages, *second.messages)]
    assert ids == sorted(set(ids))


def test_messages_of_one_transaction_are_in_the_order_of_their_appends(db: Any, feed: Feed) -> None:
    def send(tr: Any) -> None:
        feed.append_many(tr, "ann", [1, 2])
        feed.append(tr, "bob", "else")
        feed.append(tr, "ann", 3)

    transact(db, send)

    assert bodies(read(db, feed, "ann")) == [1, 2, 3]
    assert bodies(read(db, feed, "bob")) == ["else"]


def test_appends_and_readers_conflict_with_nobody(db: Any, feed: Feed) -> None:
    trs = [db.create_transaction() for _ in range(3)]
    for number, tr in enumerate(trs):
        tr.get_read_version().wait()
        feed.append(tr, "ann", number)
    reader = db.create_transaction()
    assert bodies(feed.read(reader.snapshot, "ann")) == []
    feed.advance(reader, "ann", "phone", first_id_at(1))

    for tr in [*reversed(trs), reader]:
        tr.commit().wait()

    assert bodies(read(db, feed, "ann")) == [2, 1, 0]


def test_what_commits_late_is_never_missed(db: Any, feed: Feed) -> None:
    """A sequence would have given the first transaction the lower number, and the reader would be past it."""
    late = db.create_transaction()
    late.get_read_version().wait()
    feed.append(late, "ann", "begun first")
    append(db, feed, "ann", "committed first")
    seen = read(db, feed, "ann")
    late.commit().wait()

    assert bodies(seen) == ["committed first"]
    assert bodies(read(db, feed, "ann", seen.position)) == ["begun first"]


def test_an_append_tells_the_id_that_the_message_gets(db: Any, feed: Feed) -> None:
    tr = db.create_transaction()
    end = feed.append(tr, "ann", "hello")
    stamp = tr.get_versionstamp()
    tr.commit().wait()

    assert read(db, feed, "ann").position == stamp.value + end
    assert transact(db, lambda tr: feed.latest(tr, "ann")) == stamp.value + end


NAMES = st.recursive(
    st.one_of(st.text(min_size=1, max_size=4), st.integers(-300, 300), st.binary(min_size=1, max_size=3)),
    lambda inner: st.lists(inner, min_size=1, max_size=2).map(tuple),
    max_leaves=3,
)


@given(names=st.lists(NAMES, unique_by=lambda name: encode_name("receiver", name), max_size=8))
def test_keys_of_one_name_are_never_among_those_of_another(names: list[Any]) -> None:
    keys = FeedKeys("feed")
    for name in names:
        encoded = encode_name("receiver", name)
        begin, end = keys.messages(encoded)
        others = (encode_name("receiver", other) for other in names)
        inside = [each for each in others if begin <= keys.message(each, b"\x80" * 18) < end]
        assert inside == [encoded]


@given(name=NAMES)
def test_a_name_comes_back_as_it_was_given(name: Any) -> None:
    assert decode_name(encode_name("receiver", name)) == name


@pytest.mark.parametrize(
    ("receiver", "message", "error"),
    [
        (None, "x", cq.InvalidData),
        (True, "x", cq.InvalidData),
        ((), "x", cq.InvalidData),
        ("", "x", cq.InvalidData),
        (b"", "x", cq.InvalidData),
        (("ann", ""), "x", cq.InvalidData),
        (("ann", 1.5), "x", cq.InvalidData),
        (("ann", ["phone"]), "x", cq.InvalidData),
        ("x" * 1_001, "x", cq.errors.TooLarge),
        ("ann", "x" * MAX_MESSAGE_BYTES, cq.errors.TooLarge),
        ("ann", object(), cq.InvalidData),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_write(
    db: Any, feed: Feed, receiver: Any, message: Any, error: type[Exception]
) -> None:
    tr = db.create_transaction()
    with pytest.raises(error):
        feed.append_many(tr, receiver, ["fits", message])
    tr.commit().wait()

    begin = FeedKeys(feed.name).prefix + b"m"
    assert transact(db, lambda tr: tr.get_range(begin, prefix_end(begin)).to_list()) == []


def test_the_largest_message_and_any_cbor_come_back(db: Any, feed: Feed) -> None:
    largest = "x" * (MAX_MESSAGE_BYTES - 5)
    append(db, feed, "ann", largest, {"to": [1, 2.5, None]}, None)

    assert bodies(read(db, feed, "ann")) == [largest, {"to": [1, 2.5, None]}, None]


def test_a_position_is_a_terminals_own_and_never_goes_back(db: Any, feed: Feed) -> None:
    append(db, feed, "ann", "one", "two")
    first, second = (message.id for message in read(db, feed, "ann").messages)

    for position in (first, second, first, b""):
        transact(db, lambda tr: feed.advance(tr, "ann", "phone", position))  # noqa: B023

    assert transact(db, lambda tr: feed.position(tr, "ann", "phone")) == second
    assert transact(db, lambda tr: feed.position(tr, "ann", "tablet")) == b""
    with pytest.raises(cq.InvalidData, match="id of a message"):
        transact(db, lambda tr: feed.advance(tr, "ann", "phone", b"no id"))


def test_two_processes_of_one_terminal_do_not_both_go_on(db: Any, feed: Feed) -> None:
    append(db, feed, "ann", "once")
    trs = [db.create_transaction() for _ in range(2)]
    for number, tr in enumerate(trs):
        page = feed.read(tr.snapshot, "ann", feed.position(tr, "ann", "phone"))
        tr.set(b"printed by", str(number).encode())
        feed.advance(tr, "ann", "phone", page.position)
    trs[0].commit().wait()

    assert not commits(trs[1])


def test_waiting_ends_with_the_append(db: Any, feed: Feed) -> None:
    append(db, feed, "ann", "old")
    position = read(db, feed, "ann").position
    found: list[FeedPage] = []
    waiting = threading.Thread(target=lambda: found.append(feed.wait(db, "ann", position, timeout=60)))
    waiting.start()
    append(db, feed, "bob", "for another")
    append(db, feed, "ann", "new")
    waiting.join()

    assert bodies(found[0]) == ["new"]
    assert bodies(feed.wait(db, "ann", timeout=0)) == ["old", "new"]
    assert bodies(feed.wait(db, "nobody", timeout=0)) == []


@pytest.mark.parametrize("receiver", ["ann", "nobody"])
def test_waiting_ends_with_the_deletion_of_the_feed(db: Any, feed: Feed, receiver: str) -> None:
    append(db, feed, "ann", "old")
    position = read(db, feed, receiver).position
    is_watched = threading.Event()

    class WatchedFeed(WrappedDatabase):
        def call(self, tr: Any, what: str, *args: Any, **kwargs: Any) -> Any:
            if what == "commit":
                is_watched.set()
            return super().call(tr, what, *args, **kwargs)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(feed.wait, WatchedFeed(db), receiver, position, timeout=60)
        assert is_watched.wait(60)
        feed.delete(db)
        with pytest.raises(cq.errors.FeedNotConfigured):
            waiting.result()


def test_waiting_sees_the_rest_of_a_transaction(db: Any, feed: Feed) -> None:
    transact(db, lambda tr: feed.append_many(tr, "ann", [1, 2]))
    first = feed.wait(db, "ann", limit=1)

    assert bodies(feed.wait(db, "ann", first.position, timeout=0)) == [2]
    last = read(db, feed, "ann").position
    assert feed.wait(db, "ann", last, timeout=0) == FeedPage((), last, False, False)


@pytest.mark.parametrize(
    "use",
    [
        lambda feed, tr, message: feed.read(tr, "ann"),
        lambda feed, tr, message: feed.latest(tr, "ann"),
        lambda feed, tr, message: feed.advance(tr, "ann", "phone", message),
        lambda feed, tr, message: feed.forget(tr, "ann"),
        lambda feed, tr, message: feed.edit(tr, "ann", message, "new", sender="ann"),
        lambda feed, tr, message: feed.members(tr, "crew"),
        lambda feed, tr, message: feed.is_member(tr, "crew", "ann"),
    ],
    ids=["read", "latest", "advance", "forget", "edit", "members", "is_member"],
)
def test_what_the_transaction_has_appended_cannot_be_read_in_it(db: Any, counting: Feed, use: Any) -> None:
    message = counting.append_now(db, "ann", "old", sender="ann")
    tr = db.create_transaction()
    counting.append(tr, "ann", "new")
    counting.join(tr, "crew", "ann")
    with pytest.raises(cq.errors.PendingUnreadable):
        use(counting, tr, message)


def test_a_feed_must_be_configured(db: Any, name: str) -> None:
    feed = Feed(name)
    for use in (
        lambda tr: feed.append(tr, "ann", 1),
        lambda tr: feed.read(tr, "ann"),
        lambda tr: feed.join(tr, "g", "ann"),
        lambda tr: feed.append_to_group(tr, "g", 1),
        lambda tr: feed.position(tr, "ann", 1),
    ):
        with pytest.raises(cq.errors.FeedNotConfigured, match="cq feed configure"):
            transact(db, use)
    with pytest.raises(cq.errors.FeedNotConfigured):
        feed.delete(db)


def test_settings_stay_unless_they_are_given(db: Any, feed: Feed) -> None:
    assert feed.configure(db, keep=60).keep_seconds == 60
    assert feed.configure(db) == feed.configure(db, numbers=False)
    assert feed.configure(db).keep_seconds == 60
    assert feed.configure(db, keep=0).keep_seconds is None
    with pytest.raises(cq.errors.InvalidConfiguration, match="cannot change"):
        feed.configure(db, numbers=True)
    with pytest.raises(cq.errors.InvalidConfiguration, match="gives no numbers"):
        feed.configure(db, keep_last=5)
    with pytest.raises(cq.errors.InvalidConfiguration, match="gives no numbers"):
        transact(db, lambda tr: feed.read_numbered(tr, "ann"))
    invalid: list[Any] = [-1, float("nan"), float("inf"), True, "soon"]
    for seconds in invalid:
        with pytest.raises(cq.errors.InvalidConfiguration, match="a positive duration"):
            feed.configure(db, keep=seconds)
    for number in (*invalid, 2.5):
        with pytest.raises(cq.errors.InvalidConfiguration, match="a number of messages to keep"):
            Feed(f"{feed.name}.last").configure(db, numbers=True, keep_last=number)


def test_no_append_commits_to_a_feed_that_was_deleted(db: Any, feed: Feed) -> None:
    append(db, feed, "ann", "x")
    late = db.create_transaction()
    feed.append(late, "ann", "late")
    feed.delete(db)

    assert not commits(late)
    prefix = feed.keys.prefix
    assert transact(db, lambda tr: tr.get_range(prefix, prefix_end(prefix)).to_list()) == []


def test_members_are_those_who_have_joined_last(db: Any, feed: Feed) -> None:
    def change(tr: Any) -> None:
        for user in ("ann", "bob", "cid"):
            feed.join(tr, "g", user)
        feed.leave(tr, "g", "bob")
        feed.join(tr, "other", "dan")

    transact(db, change)
    members = transact(db, lambda tr: feed.members(tr, "g"))

    assert sorted(members) == ["ann", "cid"]
    assert transact(db, lambda tr: feed.members(tr, "g", after=members[0])) == members[1:]
    assert transact(db, lambda tr: feed.members(tr, "g", limit=1)) == members[:1]
    assert transact(db, lambda tr: [feed.is_member(tr, "g", user) for user in ("ann", "bob")]) == [
        True,
        False,
    ]


# Unread counts, and ids after the commit


@pytest.fixture
def counting(db: Any, name: str) -> Feed:
    made = Feed(name)
    made.configure(db, unread=True)
    return made


def unread(db: Any, feed: Feed, terminal: str = "phone") -> int:
    return transact(db, lambda tr: feed.unread(tr.snapshot, "ann", terminal))


def advance(db: Any, feed: Feed, position: bytes, terminal: str = "phone") -> None:
    transact(db, lambda tr: feed.advance(tr, "ann", terminal, position))


def test_unread_messages_are_those_after_the_position_of_each_terminal(db: Any, counting: Feed) -> None:
    assert unread(db, counting) == 0
    append(db, counting, "ann", *range(5))
    append(db, counting, "bob", 1)
    ids = [message.id for message in read(db, counting, "ann").messages]
    for place, left in ((1, 3), (0, 3), (3, 1), (4, 0)):
        advance(db, counting, ids[place])
        assert unread(db, counting) == left
    advance(db, counting, ids[2], "tablet")
    append(db, counting, "ann", "more")

    assert (unread(db, counting), unread(db, counting, "tablet"), unread(db, counting, "new")) == (1, 3, 6)
    assert transact(db, lambda tr: counting.position(tr, "ann", "phone")) == ids[4]


def test_unread_counts_are_part_of_the_transactions_of_appends_and_positions(db: Any, counting: Feed) -> None:
    append(db, counting, "ann", 1, 2)
    position = read(db, counting, "ann", limit=1).position

    def both(tr: Any) -> int:
        counting.advance(tr, "ann", "phone", position)
        counting.append(tr, "ann", 3)
        return counting.unread(tr, "ann", "phone")

    assert transact(db, both) == 2
    assert unread(db, counting) == 2
    tr = db.create_transaction()
    both(tr)
    tr.reset()
    assert unread(db, counting) == 2


def test_an_append_and_an_advance_do_not_conflict_with_counts(db: Any, counting: Feed) -> None:
    append(db, counting, "ann", 1, 2)
    position = read(db, counting, "ann", limit=1).position
    one, two, three = (db.create_transaction() for _ in range(3))
    counting.append(one, "ann", 3)
    counting.advance(two, "ann", "phone", position)
    counting.advance(three, "ann", "phone", read(db, counting, "ann").position)

    assert [commits(one), commits(three), commits(two)] == [True, True, True]
    assert unread(db, counting) == 1


def test_removed_and_forgotten_messages_are_not_unread(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db, numbers=True, unread=True, keep_last=2)
    append(db, feed, "ann", *range(6))
    ids = [message.id for message in read(db, feed, "ann").messages]
    advance(db, feed, ids[0], "phone")
    Worker(db, queues=[name]).drain()
    while len(read(db, feed, "ann").messages) > 2:
        FeedTrimTask(db, transact(db, lambda tr: read_feed_config(tr, name))).run()
    assert (unread(db, feed), unread(db, feed, "new")) == (2, 2)
    advance(db, feed, ids[2])  # a page that was read before the removal
    assert unread(db, feed) == 2
    advance(db, feed, ids[4])
    assert unread(db, feed) == 1

    transact(db, lambda tr: feed.forget(tr, "ann"))
    assert unread(db, feed) == 0
    append(db, feed, "ann", "again")
    assert unread(db, feed) == 1


def test_a_position_is_not_stored_with_the_count_of_messages_that_were_forgotten(
    db: Any, counting: Feed
) -> None:
    append(db, counting, "ann", 1, 2, 3)
    late = db.create_transaction()
    counting.advance(late, "ann", "phone", read(db, counting, "ann").position)

    transact(db, lambda tr: counting.forget(tr, "ann"))

    assert not commits(late)
    append(db, counting, "ann", "again")
    assert unread(db, counting) == 1


@pytest.mark.parametrize("has_counts", [False, True])
def test_a_position_beyond_what_the_transaction_reads_is_refused(
    db: Any, name: str, *, has_counts: bool
) -> None:
    feed = Feed[int](name)
    feed.configure(db, unread=has_counts)
    append(db, feed, "ann", 1)
    early = db.create_transaction()
    early.get_read_version().wait()
    append(db, feed, "ann", 2)
    position = read(db, feed, "ann").position

    for each in (position, b"\xff" * len(position)):
        with pytest.raises(cq.InvalidData, match="that this transaction can read"):
            feed.advance(early, "ann", "phone", each)
    advance(db, feed, position)
    assert transact(db, lambda tr: feed.position(tr, "ann", "phone")) == position


def test_a_feed_without_counts_says_so(db: Any, feed: Feed) -> None:
    with pytest.raises(InvalidConfiguration, match="does not count unread messages"):
        unread(db, feed)
    with pytest.raises(InvalidConfiguration, match="was made with unread=False, which cannot change"):
        feed.configure(db, unread=True)


def test_the_id_is_known_after_the_commit(db: Any, feed: Feed) -> None:
    first, second = feed.append_now(db, "ann", "one"), feed.append_now(db, "ann", "two")
    transact(db, lambda tr: feed.join(tr, "crew", "bob"))
    origin = feed.append_now(db, "crew", "all", to_group=True)
    Worker(db, queues=[feed.name]).drain()

    assert [(each.id, each.body) for each in read(db, feed, "ann").messages] == [
        (first, "one"),
        (second, "two"),
    ]
    assert [(each.origin, each.body) for each in read(db, feed, "bob").messages] == [(origin, "all")]
