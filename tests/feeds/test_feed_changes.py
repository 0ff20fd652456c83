"""Messages that their sender edits or recalls, for one receiver and for groups."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq import runtime
from cq.feeds.config import read_feed_config
from cq.feeds.feed import Feed, FeedPage, Message
from cq.feeds.verify import verify_feed
from cq.keys.feed import encode_name
from cq.observers.feeds.trim import FeedTrimTask
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.kit.queues import commits

CREW = encode_name("group", "crew")


@pytest.fixture
def feed(db: Any, name: str) -> Feed:
    made = Feed(name)
    made.configure(db, numbers=True, unread=True)
    return made


def do(db: Any, call: Any, *args: Any, **named: Any) -> Any:
    return transact(db, lambda tr: call(tr, *args, **named))


def inbox(db: Any, feed: Feed, receiver: Any, after: bytes = b"") -> list[Message]:
    return list(transact(db, lambda tr: feed.read(tr.snapshot, receiver, after)).messages)


def shown(messages: list[Message]) -> list[Any]:
    """Each message as (its text or what became of it, whether it is an event)."""
    return [
        ("recalled" if each.recalled else each.body, each.edited, each.changes is not None)
        for each in messages
    ]


def drain(db: Any, feed: Feed) -> None:
    Worker(db, queues=[feed.name]).drain()
    assert list(verify_feed(db, feed.name)) == []


def unread(db: Any, feed: Feed, receiver: str, terminal: str = "phone") -> int:
    return transact(db, lambda tr: feed.unread(tr.snapshot, receiver, terminal))


def test_a_change_reaches_those_who_have_read_past_it_and_those_who_come_later(db: Any, feed: Feed) -> None:
    first = feed.append_now(db, "bob", "at 5", sender="ann")
    second = feed.append_now(db, "bob", "wrong chat", sender="ann")
    do(db, feed.advance, "bob", "phone", second)

    assert do(db, feed.edit, "bob", first, "at 6", sender="ann")
    assert do(db, feed.recall, "bob", second, sender="ann")
    drain(db, feed)

    events = inbox(db, feed, "bob", second)
    assert shown(events) == [("at 6", True, True), ("recalled", False, True)]
    assert [each.changes for each in events] == [first, second]
    assert [each.sender for each in events] == ["ann", "ann"]
    everything = inbox(db, feed, "bob")
    assert shown(everything)[:2] == [("at 6", True, False), ("recalled", False, False)]
    assert [each.id for each in everything[:2]] == [first, second]
    numbered = do(db, feed.read_numbered, "bob").messages
    assert [(each.number, each.body) for each in numbered] == list(enumerate(["at 6", None, "at 6", None], 1))
    # The text is nowhere in the store.
    begin, end = feed.keys.messages(encode_name("receiver", "bob"))
    rows = transact(db, lambda tr: tr.get_range(begin, end).to_list())
    assert not [row for row in rows if b"wrong" in row.value or b"at 5" in row.value]


def test_an_earlier_edit_leaves_no_text_of_a_recalled_message(db: Any, feed: Feed) -> None:
    message = feed.append_now(db, "bob", "one", sender="ann")
    do(db, feed.edit, "bob", message, "two", sender="ann")
    do(db, feed.recall, "bob", message, sender="ann")

    assert shown(inbox(db, feed, "bob")) == [
        ("recalled", True, False),
        ("recalled", True, True),
        ("recalled", True, True),
    ]
    assert not do(db, feed.edit, "bob", message, "three", sender="ann")
    assert not do(db, feed.recall, "bob", message, sender="ann")
    assert len(inbox(db, feed, "bob")) == 3


def test_only_the_sender_changes_a_message(db: Any, feed: Feed) -> None:
    do(db, feed.join, "crew", "bob")
    for to_group, receiver in ((False, "bob"), (True, "crew")):
        mine = feed.append_now(db, receiver, "mine", sender=("ann", 1), to_group=to_group)
        for sender in ("eve", ("ann", 2), 1):
            with pytest.raises(cq.InvalidData, match="only its sender"):
                do(db, feed.edit, receiver, mine, "hers", sender=sender, to_group=to_group)
            with pytest.raises(cq.InvalidData, match="only its sender"):
                do(db, feed.recall, receiver, mine, sender=sender, to_group=to_group)
        assert do(db, feed.edit, receiver, mine, "still mine", sender=("ann", 1), to_group=to_group)
    nobodys = feed.append_now(db, "bob", "nobody's")
    with pytest.raises(cq.InvalidData, match="was given a `sender`"):
        do(db, feed.recall, "bob", nobodys, sender="ann")
    with pytest.raises(cq.InvalidData, match="got none"):
        do(db, feed.recall, "bob", b"", sender="ann")
    assert not do(db, feed.recall, "bob", b"\x01" * 18, sender="ann")
    drain(db, feed)
    assert [each.sender for each in inbox(db, feed, "bob")].count(("ann", 1)) == 4


def test_events_are_not_unread_and_a_recalled_message_is_until_it_was_read(db: Any, feed: Feed) -> None:
    ids = [feed.append_now(db, "bob", text, sender="ann") for text in ("one", "two", "three")]
    do(db, feed.advance, "bob", "phone", ids[0])
    for id_ in ids:
        do(db, feed.edit, "bob", id_, "new", sender="ann")
    do(db, feed.recall, "bob", ids[1], sender="ann")

    assert (unread(db, feed, "bob"), unread(db, feed, "bob", "tablet")) == (2, 3)
    events = inbox(db, feed, "bob", ids[2])
    assert len(events) == 4
    for position, left in ((ids[1], 1), (ids[2], 0), (events[1].id, 0), (events[-1].id, 0)):
        do(db, feed.advance, "bob", "phone", position)
        assert unread(db, feed, "bob") == left
    feed.append_now(db, "bob", "four", sender="ann")
    do(db, feed.advance, "bob", "tablet", events[2].id)
    assert (unread(db, feed, "bob"), unread(db, feed, "bob", "tablet")) == (1, 1)
    drain(db, feed)


def test_counts_stay_right_when_events_are_removed(db: Any, feed: Feed) -> None:
    for number in range(3):
        id_ = feed.append_now(db, "bob", number, sender="ann")
        do(db, feed.edit, "bob", id_, "new", sender="ann")
    feed.configure(db, keep_last=3)  # an event, a message and its event
    drain(db, feed)
    config = transact(db, lambda tr: read_feed_config(tr, feed.name))
    while len(inbox(db, feed, "bob")) > 3:
        FeedTrimTask(db, config).run()

    assert unread(db, feed, "bob") == 1
    assert list(verify_feed(db, feed.name)) == []
    # The first event's message is gone: it reads as one that was recalled.
    assert shown(inbox(db, feed, "bob"))[0] == ("recalled", False, True)
    do(db, feed.advance, "bob", "phone", inbox(db, feed, "bob")[1].id)
    assert unread(db, feed, "bob") == 0


def test_a_change_and_a_removal_of_the_message_conflict(db: Any, feed: Feed) -> None:
    id_ = feed.append_now(db, "bob", "x", sender="ann")
    late = db.create_transaction()
    assert feed.edit(late, "bob", id_, "y", sender="ann")
    do(db, feed.forget, "bob")

    assert not commits(late)
    assert inbox(db, feed, "bob") == []


def test_waiting_ends_with_an_event(db: Any, feed: Feed) -> None:
    id_ = feed.append_now(db, "bob", "x", sender="ann")
    do(db, feed.edit, "bob", id_, "y", sender="ann")

    assert shown(list(feed.wait(db, "bob", id_, timeout=60).messages)) == [("y", True, True)]


def test_the_sender_has_a_copy_that_is_changed_too(db: Any, feed: Feed) -> None:
    do(db, feed.send, "ann", "bob", "at 5")
    do(db, feed.send, ("ann", 1), ("bob", 1), "with tuples")
    (copy,) = inbox(db, feed, "ann")
    (message,) = inbox(db, feed, "bob")
    assert (copy.id, copy.to, copy.sender, copy.body) == (message.id, "bob", "ann", "at 5")
    assert (message.to, message.sender) == (None, "ann")
    assert (unread(db, feed, "ann"), unread(db, feed, "bob")) == (0, 1)
    assert [each.to for each in inbox(db, feed, ("ann", 1))] == [("bob", 1)]

    assert do(db, feed.edit, copy.to, copy.id, "at 6", sender="ann")
    for user in ("ann", "bob"):
        messages = inbox(db, feed, user)
        assert shown(messages) == [("at 6", True, False), ("at 6", True, True)]
        assert messages[1].changes == message.id
    assert (unread(db, feed, "ann"), unread(db, feed, "bob")) == (0, 1)
    with pytest.raises(cq.InvalidData, match="only its sender"):
        do(db, feed.recall, "ann", copy.id, sender="bob")
    do(db, feed.forget, "ann")
    assert do(db, feed.recall, "bob", message.id, sender="ann")
    assert shown(inbox(db, feed, "bob"))[0] == ("recalled", True, False)
    assert inbox(db, feed, "ann") == []
    drain(db, feed)


def test_a_message_is_changed_only_together_with_its_copy(db: Any, feed: Feed) -> None:
    do(db, feed.send, "ann", "bob", "at 5")
    own = feed.append_now(db, "ann", "milk", sender="ann")
    (copy, _) = inbox(db, feed, "ann")

    for receiver in ("ann", "cyd"):
        with pytest.raises(cq.InvalidData, match="was sent to 'bob': change it there"):
            do(db, feed.edit, receiver, copy.id, "at 6", sender="ann")
    with pytest.raises(cq.InvalidData, match="was sent to 'ann': change it there"):
        do(db, feed.recall, "cyd", own, sender="ann")
    with pytest.raises(cq.InvalidData, match="expected a sender"):
        do(db, feed.edit, "bob", copy.id, "at 6", sender=None)

    assert shown(inbox(db, feed, "ann")) == [("at 5", False, False), ("milk", False, False)]
    assert shown(inbox(db, feed, "bob")) == [("at 5", False, False)]
    assert inbox(db, feed, "cyd") == []


def test_a_message_to_oneself_is_there_once(db: Any, feed: Feed) -> None:
    do(db, feed.send, "ann", "ann", "milk")
    (note,) = inbox(db, feed, "ann")
    assert (note.to, note.body, unread(db, feed, "ann")) == ("ann", "milk", 0)
    assert do(db, feed.edit, "ann", note.id, "bread", sender="ann")
    assert shown(inbox(db, feed, "ann")) == [("bread", True, False), ("bread", True, True)]
    drain(db, feed)


def test_terminals_are_online_until_their_time_ends(
    db: Any, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = runtime.time_ns()
    monkeypatch.setattr(runtime, "time_ns", lambda: at)

    def online() -> list[Any]:
        return transact(db, lambda tr: feed.online(tr.snapshot, "bob"))

    do(db, feed.set_online, "bob", "phone")
    do(db, feed.set_online, "bob", ("web", 7), 10.0)
    do(db, feed.set_online, "bobby", "tablet")
    assert online() == ["phone", ("web", 7)]
    at += 30 * 10**9
    assert online() == ["phone"]
    do(db, feed.set_online, "bob", "phone")
    at += 59 * 10**9
    assert online() == ["phone"]
    do(db, feed.set_online, "bob", "phone", 0)
    assert online() == []
    do(db, feed.set_online, "bob", "phone")
    do(db, feed.forget, "bob")
    assert online() == []
    for seconds in (-1, float("nan"), 1e10, "soon", True):
        with pytest.raises((cq.InvalidData, cq.errors.InvalidConfiguration), match="seconds"):
            do(db, feed.set_online, "bob", "phone", seconds)


# Groups


def test_the_text_to_a_group_is_stored_once_and_changed_for_all(db: Any, feed: Feed) -> None:
    for user in ("ann", "bob", "cid"):
        do(db, feed.join, "crew", user)
    before = feed.append_now(db, "crew", "before", sender="ann", to_group=True)
    do(db, feed.edit, "crew", before, "edited before delivery", sender="ann", to_group=True)
    after = feed.append_now(db, "crew", "after", sender="ann", to_group=True)
    drain(db, feed)
    position = inbox(db, feed, "bob")[-1].id
    do(db, feed.advance, "bob", "phone", position)
    do(db, feed.recall, "crew", after, sender="ann", to_group=True)
    drain(db, feed)

    for user in ("ann", "bob", "cid"):
        messages = inbox(db, feed, user)
        assert shown(messages) == [
            ("edited before delivery", True, False),
            ("edited before delivery", True, True),
            ("recalled", False, False),
            ("recalled", False, True),
        ]
        assert [each.origin for each in messages][::2] == [before, after]
        assert [each.changes for each in messages] == [None, before, None, after]
        assert {each.group for each in messages} == {"crew"}
    assert [each.changes for each in inbox(db, feed, "bob", position)] == [after]
    # Own messages are never unread.
    assert [unread(db, feed, user) for user in ("ann", "bob", "cid")] == [0, 0, 2]


def test_events_reach_those_who_have_been_members_since_the_message(db: Any, feed: Feed) -> None:
    for user in ("stays", "joins again", "leaves", "comes back"):
        do(db, feed.join, "crew", user)
    message = feed.append_now(db, "crew", "text", sender="stays", to_group=True)
    drain(db, feed)
    do(db, feed.join, "crew", "joins again")
    for user in ("leaves", "comes back"):
        do(db, feed.leave, "crew", user)
    for user in ("comes back", "comes later"):
        do(db, feed.join, "crew", user)
    feed.append_now(db, "crew", "plain", to_group=True)  # its delivery clears outdated events
    drain(db, feed)
    do(db, feed.edit, "crew", message, "new", sender="stays", to_group=True)
    drain(db, feed)

    events = {
        user: [each.body for each in inbox(db, feed, user) if each.changes == message]
        for user in ("stays", "joins again", "leaves", "comes back", "comes later")
    }
    assert events == {
        "stays": ["new"],
        "joins again": ["new"],
        "leaves": [],
        "comes back": [],
        "comes later": [],
    }
    # Who left has the new text, too, if it reads the message again.
    assert [each.body for each in inbox(db, feed, "leaves")] == ["new"]
    assert [each.body for each in inbox(db, feed, "comes later")] == ["plain"]


def test_a_members_copy_is_not_changed_alone(db: Any, feed: Feed) -> None:
    do(db, feed.join, "crew", "bob")
    feed.append_now(db, "crew", "text", sender="ann", to_group=True)
    drain(db, feed)
    (copy,) = inbox(db, feed, "bob")
    with pytest.raises(cq.InvalidData, match="sent to the group 'crew': change it there, by its `origin`"):
        do(db, feed.edit, "bob", copy.id, "new", sender="ann")
    assert shown(inbox(db, feed, "bob")) == [("text", False, False)]


def texts(db: Any, feed: Feed) -> int:
    return len(transact(db, lambda tr: tr.get_range(*feed.keys.all_group_texts()).to_list()))


def test_texts_are_removed_with_the_messages_but_not_before_the_delivery(db: Any, name: str) -> None:
    feed = Feed(name)
    feed.configure(db, keep=1e-6)
    for group in ("crew", "other"):
        do(db, feed.join, group, "bob")
        feed.append_now(db, group, "text", sender="ann", to_group=True)
    config = transact(db, lambda tr: read_feed_config(tr, name))

    def trim() -> None:
        feed.append_now(db, "another", "so that versions go on")
        task = FeedTrimTask(db, config)
        while task.run() == 0.0:
            pass

    trim()
    assert texts(db, feed) == 2
    drain(db, feed)
    trim()
    assert (texts(db, feed), inbox(db, feed, "bob")) == (0, [])
    # A text that is removed before its copies: they read as a message that was recalled.
    kept = feed.append_now(db, "crew", "text", sender="ann", to_group=True)
    drain(db, feed)
    transact(db, lambda tr: tr.clear(feed.keys.group_text(CREW, kept)))
    assert shown(inbox(db, feed, "bob")) == [("recalled", False, False)]
    assert not do(db, feed.edit, "crew", kept, "late", sender="ann", to_group=True)


def test_a_text_that_is_lost_is_found(db: Any, feed: Feed) -> None:
    do(db, feed.join, "crew", "bob")
    kept = feed.append_now(db, "crew", "text", sender="ann", to_group=True)
    drain(db, feed)
    transact(db, lambda tr: tr.clear(feed.keys.group_text(CREW, kept)))

    (difference,) = verify_feed(db, feed.name)
    assert difference.whose == "receiver 'bob'"
    assert "the text to the group is not stored" in difference.what


# Large texts


def stored_bytes(db: Any, feed: Feed) -> int:
    rows = transact(db, lambda tr: tr.get_range_startswith(feed.keys.prefix).to_list())
    return sum(len(row.value) for row in rows)


@pytest.mark.parametrize("keep_last", [None, 5])
def test_a_large_text_to_a_group_is_stored_once_if_it_can_be_removed(
    db: Any, feed: Feed, keep_last: int | None
) -> None:
    feed.configure(db, keep_last=keep_last)
    users = [f"user {number}" for number in range(5)]
    for user in users:
        do(db, feed.join, "crew", user)
    large = "large" * 800
    for body in (large, "small"):
        feed.append_now(db, "crew", body, to_group=True)
    drain(db, feed)

    for user in users:
        assert [(each.body, each.group) for each in inbox(db, feed, user)] == [
            (large, "crew"),
            ("small", "crew"),
        ]
        assert unread(db, feed, user) == 2
    is_stored_once = keep_last is None
    assert texts(db, feed) == (1 if is_stored_once else 0)
    assert (stored_bytes(db, feed) < 8_000) == is_stored_once
    origin = inbox(db, feed, users[0])[0].origin
    if is_stored_once:
        with pytest.raises(cq.InvalidData, match="was given a `sender`"):
            do(db, feed.edit, "crew", origin, "x", sender="ann", to_group=True)


@pytest.mark.parametrize("is_group", [True, False])
def test_a_page_of_large_texts_in_other_rows_is_limited(db: Any, name: str, is_group: bool) -> None:
    feed = Feed(name)
    feed.configure(db, numbers=True)
    transact(db, lambda tr: feed.join(tr, "crew", "ann"))
    to = "crew" if is_group else "ann"
    id_ = feed.append_now(db, to, "x" * 80_000, sender="bob", to_group=is_group)
    for _ in range(30):
        transact(db, lambda tr: feed.edit(tr, to, id_, "y" * 80_000, sender="bob", to_group=is_group))
    Worker(db).drain()

    def read(tr: Any, page: FeedPage) -> list[FeedPage]:
        number = page.messages[-1].number if page.messages else 0
        return [feed.read(tr, "ann", page.position), feed.read_numbered(tr, "ann", number or 0)]

    for kind in (0, 1):
        page, seen = FeedPage((), b"", True, False), 0
        while page.more:
            page = transact(db, lambda tr: read(tr.snapshot, page)[kind])  # noqa: B023
            assert 0 < len(page.messages) <= 13
            seen += len(page.messages)
        assert seen == 31
