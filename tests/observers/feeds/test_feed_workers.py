"""What workers do for feeds: messages of groups reach their members, messages get numbers, old ones are removed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest

import cq
from cq.feeds.feed import Feed, Message
from cq.feeds.verify import verify_feed
from cq.keys import prefix_end
from cq.keys.feed import BUCKETS, bucket_of, encode_name
from cq.observers.feeds import deliver, trim
from cq.observers.feeds.deliver import DeliveryTask
from cq.observers.feeds.round_robin import TROUBLE_SECONDS, NumberingTask
from cq.observers.feeds.tasks import read_status
from cq.observers.feeds.trim import FeedTrimTask
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import subscribe
from cq.observers.worker.worker import Worker
from cq.store.api import error_code
from cq.store.transact import transact
from tests.kit.workers import running
from tests.observers.feeds.feedtasks import delivering_tasks, numbering_tasks, trimming_tasks

USERS = ("ann", "bob", "cid", "dan")


def append(db: Any, feed: Feed, receiver: Any, *messages: Any) -> None:
    for message in messages:
        transact(db, lambda tr: feed.append(tr, receiver, message))  # noqa: B023


def messages_of(db: Any, feed: Feed, receiver: Any) -> list[Message]:
    return list(transact(db, lambda tr: feed.read(tr.snapshot, receiver, limit=10_000)).messages)


def numbered(db: Any, feed: Feed, receiver: Any) -> list[Message]:
    return list(transact(db, lambda tr: feed.read_numbered(tr.snapshot, receiver, limit=10_000)).messages)


def join(db: Any, feed: Feed, group: Any, users: Iterable[Any]) -> None:
    def join_all(tr: Any) -> None:
        for user in users:
            feed.join(tr, group, user)

    transact(db, join_all)


def finish(tasks: Iterable[Task]) -> None:
    """Run tasks until they have nothing to do."""
    for task in tasks:
        while task.run() >= 0.0:
            pass


def left(db: Any, feed: Feed) -> tuple[int, int]:
    status = transact(db, lambda tr: read_status(tr, feed.name))
    return status.to_number, status.to_deliver


def conflict(first: Any, second: Any) -> None:
    """The first of two transactions commits, the second cannot."""
    first.commit().wait()
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each store has its own FDBError
        second.commit().wait()
    assert error_code(raised.value) == 1020


# Numbers


def test_messages_get_numbers_without_a_gap_in_the_order_of_ids(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True)
    tasks = numbering_tasks(db, config)
    for turn in range(3):
        append(db, feed, "ann", *range(turn * 10, turn * 10 + 10))
        append(db, feed, "bob", turn)
        finish(tasks)

    assert [(each.number, each.body) for each in numbered(db, feed, "ann")] == [
        (at + 1, at) for at in range(30)
    ]
    assert [each.id for each in numbered(db, feed, "ann")] == [
        each.id for each in messages_of(db, feed, "ann")
    ]
    assert [(each.number, each.body) for each in numbered(db, feed, "bob")] == [(1, 0), (2, 1), (3, 2)]
    page = transact(db, lambda tr: feed.read_numbered(tr.snapshot, "ann", after=12, limit=2))
    assert ([each.number for each in page.messages], page.more, page.missed) == ([13, 14], True, False)
    assert left(db, feed) == (0, 0)


def test_a_flooded_receiver_does_not_keep_others_from_their_numbers(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True)
    bucket = bucket_of(encode_name("", "flooded"))
    others = [user for user in range(100) if bucket_of(encode_name("", user)) == bucket]
    transact(db, lambda tr: feed.append_many(tr, "flooded", range(3_000)))
    for user in others:
        append(db, feed, user, "one")

    NumberingTask(db, config, bucket).run()

    assert [len(numbered(db, feed, user)) for user in others] == [1] * len(others)
    assert 0 < len(numbered(db, feed, "flooded")) < 1_000


def test_two_steps_do_not_number_the_same_messages(db: Any, name: str) -> None:
    feed = Feed(name)
    task = NumberingTask(db, feed.configure(db, numbers=True), 0)
    append(db, feed, "ann", "x")
    trs = [db.create_transaction() for _ in range(2)]
    for tr in trs:
        task.serve(tr, [encode_name("", "ann")])

    conflict(*trs)

    assert [each.number for each in numbered(db, feed, "ann")] == [1]


def test_a_message_that_comes_while_a_step_commits_is_not_forgotten(db: Any, name: str) -> None:
    feed = Feed(name)
    task = NumberingTask(db, feed.configure(db, numbers=True), bucket_of(encode_name("", "ann")))
    append(db, feed, "ann", 1)
    tr = db.create_transaction()
    task._step(tr)
    append(db, feed, "ann", 2)
    tr.commit().wait()

    assert left(db, feed) == (1, 0)
    finish([task])
    assert [each.number for each in numbered(db, feed, "ann")] == [1, 2]
    assert left(db, feed) == (0, 0)


def test_a_receiver_is_forgotten_whatever_workers_do_meanwhile(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True, keep_last=1)
    append(db, feed, "ann", *range(3))
    append(db, feed, "bob", "stays")
    finish(numbering_tasks(db, config))
    trimmed(db, feed)
    append(db, feed, "ann", "late")
    transact(db, lambda tr: feed.advance(tr, "ann", "phone", messages_of(db, feed, "ann")[0].id))
    numbering, forgetting = db.create_transaction(), db.create_transaction()
    NumberingTask(db, config, 0).serve(numbering, [encode_name("", "ann")])
    feed.forget(forgetting, "ann")

    conflict(forgetting, numbering)

    keys = [row.key for row in transact(db, lambda tr: tr.get_range(*everything(feed)).to_list())]
    assert [key for key in keys if encode_name("", "ann") in key] == []
    append(db, feed, "ann", "new")
    finish(numbering_tasks(db, config))
    assert [(each.number, each.body) for each in numbered(db, feed, "ann")] == [(1, "new")]
    assert list(verify_feed(db, name)) == []
    assert len(messages_of(db, feed, "bob")) == 1


def everything(feed: Feed) -> tuple[bytes, bytes]:
    return feed.keys.prefix, prefix_end(feed.keys.prefix)


# Groups


def test_a_message_reaches_those_who_were_members_when_it_was_committed(db: Any, name: str) -> None:
    feed = Feed(name)
    tasks = delivering_tasks(db, feed.configure(db))

    def found(tr: Any) -> None:
        feed.append_to_group(tr, "g", "welcome")  # whoever joins in this transaction is a member as of it
        feed.join(tr, "g", "ann")
        feed.join(tr, "g", "bob")

    transact(db, found)
    transact(db, lambda tr: feed.append_to_group(tr, "g", "second"))
    transact(db, lambda tr: feed.leave(tr, "g", "bob"))
    transact(db, lambda tr: feed.join(tr, "g", "cid"))
    transact(db, lambda tr: feed.append_to_group(tr, "g", "third"))
    finish(tasks)

    got = {user: messages_of(db, feed, user) for user in USERS}
    assert {user: [each.body for each in each_] for user, each_ in got.items()} == {
        "ann": ["welcome", "second", "third"],
        "bob": ["welcome", "second"],
        "cid": ["third"],
        "dan": [],
    }
    assert {each.group for each in got["ann"]} == {"g"}
    assert [each.origin for each in got["ann"]][:2] == [each.origin for each in got["bob"]]
    assert left(db, feed) == (0, 0)
    finish(tasks)
    assert messages_of(db, feed, "ann") == got["ann"]


def test_a_large_group_gets_its_message_in_bounded_transactions_beside_others(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True)
    users = range(1_300)
    bucket = bucket_of(encode_name("", "large"))
    small = next(group for group in range(1_000) if bucket_of(encode_name("", group)) == bucket)
    join(db, feed, "large", users)
    transact(db, lambda tr: feed.join(tr, small, "ann"))
    transact(db, lambda tr: [feed.append_to_group(tr, group, "hello") for group in ("large", small)])
    task = DeliveryTask(db, config, bucket)
    steps = 1
    task.run()
    assert len(messages_of(db, feed, "ann")) == 1
    while task.run() >= 0.0:
        steps += 1

    assert steps > len(users) / deliver.WRITES
    assert [len(messages_of(db, feed, user)) for user in users] == [1] * len(users)


def test_a_step_reads_a_bounded_number_of_joins(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "WRITES", 70)
    feed = Feed(name)
    feed.configure(db)
    for _ in range(300):
        join(db, feed, "g", USERS)
    transact(db, lambda tr: feed.append_to_group(tr, "g", "hello"))
    task = DeliveryTask(db, feed.configure(db), bucket_of(encode_name("", "g")))
    task.run()
    assert [len(messages_of(db, feed, user)) for user in USERS] == [1, 1, 0, 0]
    finish([task])
    assert [len(messages_of(db, feed, user)) for user in USERS] == [1] * len(USERS)


def test_events_that_no_message_asks_for_any_more_are_removed(db: Any, name: str) -> None:
    feed = Feed(name)
    tasks = delivering_tasks(db, feed.configure(db))
    for _ in range(5):
        join(db, feed, "g", USERS)
        transact(db, lambda tr: feed.leave(tr, "g", "bob"))
    transact(db, lambda tr: feed.append_to_group(tr, "g", "x"))
    finish(tasks)

    events = transact(db, lambda tr: tr.get_range(*feed.keys.events(encode_name("", "g"))).to_list())
    assert len(events) == 3
    assert transact(db, lambda tr: feed.members(tr, "g")) == ["ann", "cid", "dan"]


def test_what_cq_has_not_written_holds_up_nobody_else(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True)
    bucket = bucket_of(encode_name("", 0))
    same = [number for number in range(100) if bucket_of(encode_name("", number)) == bucket]
    for number in same:
        join(db, feed, number, [number])
        transact(db, lambda tr: feed.append_to_group(tr, number, "x"))  # noqa: B023
    for broken in (feed.keys.delivery, feed.keys.numbered):
        transact(db, lambda tr: tr.set(broken(encode_name("", same[1])), b"?"))  # noqa: B023
    tasks = [DeliveryTask(db, config, bucket), NumberingTask(db, config, bucket)]
    transact(db, lambda tr: feed.append(tr, same[1], "direct"))
    for task in tasks:
        while (seconds := task.run()) == 0.0:
            pass
        assert seconds == TROUBLE_SECONDS
        assert task.problem

    for number in same:
        expected = (0, 1) if number == same[1] else (1, 1)
        messages = messages_of(db, feed, number)
        assert (len([each for each in messages if each.group is not None]), len(messages)) == expected
        assert number == same[1] or len(numbered(db, feed, number)) == 1
    assert left(db, feed) == (1, 1)
    for key in (feed.keys.delivery, feed.keys.numbered):
        transact(db, lambda tr: tr.clear(key(encode_name("", same[1]))))  # noqa: B023
    finish(tasks)
    assert len(numbered(db, feed, same[1])) == 2


# Retention


def trimmed(db: Any, feed: Feed) -> None:
    task = FeedTrimTask(db, feed.configure(db))
    while task.run() == 0.0:
        pass


@pytest.mark.parametrize("numbers", [False, True])
def test_old_messages_are_removed_and_readers_are_told(db: Any, name: str, numbers: bool) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=numbers, keep=1e-6)
    append(db, feed, "ann", *range(5))
    seen = messages_of(db, feed, "ann")
    finish(numbering_tasks(db, config))
    with patch.object(trim, "MESSAGES", 2):
        while messages_of(db, feed, "ann"):  # until the store's clock has moved on
            trimmed(db, feed)
    feed.configure(db, keep=0)
    append(db, feed, "ann", "new")
    finish(numbering_tasks(db, config))

    def read(after: bytes) -> tuple[list[Any], bool]:
        page = transact(db, lambda tr: feed.read(tr, "ann", after))
        return [each.body for each in page.messages], page.missed

    assert read(b"") == (["new"], True)
    assert read(seen[3].id) == (["new"], True)
    assert read(seen[4].id) == (["new"], False)
    if numbers:
        assert [each.number for each in numbered(db, feed, "ann")] == [6]
        keys = feed.keys.numbers_through(encode_name("", "ann"), 100)
        assert len(transact(db, lambda tr: tr.get_range(*keys).to_list())) == 1


def test_messages_without_a_number_are_kept_until_they_have_one(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db, numbers=True, keep=1e-6)
    append(db, feed, "ann", 1)
    trimmed(db, feed)

    assert len(messages_of(db, feed, "ann")) == 1


def test_the_last_messages_of_each_receiver_are_kept(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True, keep_last=3)
    append(db, feed, "ann", *range(10))
    append(db, feed, "bob", *range(2))
    finish(numbering_tasks(db, config))
    trimmed(db, feed)

    assert [(each.number, each.body) for each in numbered(db, feed, "ann")] == [(8, 7), (9, 8), (10, 9)]
    assert [each.body for each in messages_of(db, feed, "ann")] == [7, 8, 9]
    assert len(messages_of(db, feed, "bob")) == 2
    missed = transact(db, lambda tr: [feed.read_numbered(tr, "ann", after=at).missed for at in (6, 7, 10)])
    assert missed == [True, False, False]


def test_a_receiver_whose_mark_is_damaged_keeps_no_other_from_being_trimmed(db: Any, name: str) -> None:
    feed = Feed(name)
    config = feed.configure(db, numbers=True, keep_last=1)
    for user in USERS:
        append(db, feed, user, 1, 2)
    finish(numbering_tasks(db, config))
    transact(db, lambda tr: tr.set(feed.keys.removed(encode_name("", "bob")), b"?"))

    trimmed(db, feed)

    counts = [
        len(transact(db, lambda tr: tr.get_range(*feed.keys.messages(encode_name("", user))).to_list()))  # noqa: B023
        for user in USERS
    ]
    assert counts == [1, 2, 1, 1]


# Workers


def test_steps_tell_what_they_have_done(db: Any, name: str) -> None:
    told: list[tuple[str, Any]] = []
    end = subscribe(lambda event: told.append((event.name, event.fields.get("messages"))))
    feed = Feed(name)
    config = feed.configure(db, numbers=True, keep_last=1)
    join(db, feed, "g", USERS)
    transact(db, lambda tr: feed.append_to_group(tr, "g", "x"))
    finish([*delivering_tasks(db, config), *numbering_tasks(db, config)])
    append(db, feed, "ann", 1, 2)
    finish(numbering_tasks(db, config))
    trimmed(db, feed)
    end()

    assert told[0] == ("feed_delivered", 4)
    assert sum(messages for event, messages in told if event == "feed_numbered") == 6
    assert told[-1] == ("feed_trimmed", 2)


def test_a_worker_finds_feeds_by_itself(db: Any, name: str) -> None:
    feed = Feed(name)
    with running(Worker(db, beat=0.5)):
        feed.configure(db, numbers=True)
        transact(db, lambda tr: feed.join(tr, "g", "ann"))
        transact(db, lambda tr: feed.append_to_group(tr, "g", "hello"))
        page = feed.wait(db, "ann", timeout=60)

    assert [each.body for each in page.messages] == ["hello"]


def test_a_drain_of_a_feed_by_its_name_delivers_and_numbers_all(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db, numbers=True)
    for group in range(2 * BUCKETS):
        join(db, feed, group, ["ann"])
    transact(db, lambda tr: [feed.append_to_group(tr, group, "x") for group in range(2 * BUCKETS)])

    Worker(db, queues=[name]).drain()

    assert len(numbered(db, feed, "ann")) == 2 * BUCKETS
    assert left(db, feed) == (0, 0)
    with pytest.raises(cq.errors.QueueNotConfigured):
        Worker(db, queues=[f"{name}-other"]).drain()


def test_tasks_of_a_deleted_feed_keep_to_the_settings_of_its_successor(db: Any, name: str) -> None:
    """A worker looks for changed feeds now and then: until then it has tasks of the former feed."""
    feed = Feed(name)
    former = feed.configure(db, keep=1e-6)
    tasks = [*delivering_tasks(db, former), *trimming_tasks(db, former)]
    feed.delete(db)
    for task in tasks:
        task.run()

    feed.configure(db, unread=True, numbers=True)
    transact(db, lambda tr: feed.join(tr, "crew", "ann"))
    for message in ("one", "two"):
        feed.append_now(db, "crew", message, to_group=True)
    for task in tasks:
        task.run()

    assert transact(db, lambda tr: feed.unread(tr, "ann", "phone")) == 2
    Worker(db, queues=[name]).drain()
    page = transact(db, lambda tr: feed.read_numbered(tr, "ann"))
    assert [(each.number, each.body) for each in page.messages] == [(1, "one"), (2, "two")]
    assert list(verify_feed(db, name)) == []
