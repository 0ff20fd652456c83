"""Whatever becomes of any row of a feed: each call works or says in one of cq's errors what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from cq.encoding import codec
from cq.errors import CorruptData
from cq.feeds.feed import Feed
from cq.feeds.verify import verify_feed
from cq.keys import prefix_end
from cq.keys.feed import ID_BYTES, FeedKeys, encode_name, id_of, mark
from cq.observers.feeds.tasks import feed_part, read_all, readable_feeds
from cq.observers.scheduling.task import Task
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.fuzz import stores
from tests.fuzz.commands import run
from tests.fuzz.inputs import broken, searched

ANN: Final = encode_name("receiver", "ann")
TIMES: Final = (10**400, -(10**400), 10**19, -1, 253_370_764_800_000)


@pytest.fixture
def feed(db: Any) -> Feed:
    """A feed with messages that have numbers, messages that have none yet, and a group."""
    made = Feed("chat")
    made.configure(db, numbers=True, keep_last=5)
    transact(db, lambda tr: made.append_many(tr, "ann", range(8)))
    transact(db, lambda tr: made.join(tr, "crew", "ann"))
    transact(db, lambda tr: made.append_to_group(tr, "crew", "for all"))
    edited = made.append_now(db, "ann", "at 5", sender="bob")
    transact(db, lambda tr: made.edit(tr, "ann", edited, "at 6", sender="bob"))
    stored_once = made.append_now(db, "crew", "wrong group", sender="bob", to_group=True)
    transact(db, lambda tr: made.recall(tr, "crew", stored_once, sender="bob", to_group=True))
    Worker(db, queues=["chat"]).drain()
    transact(db, lambda tr: made.append(tr, "ann", "no number yet"))
    transact(db, lambda tr: made.append_to_group(tr, "crew", "not delivered yet"))
    transact(
        db, lambda tr: made.advance(tr, "ann", "phone", made.latest(tr.snapshot, "bob") or bytes(ID_BYTES))
    )
    return made


def _looks(db: Any, feed: Feed) -> Iterator[Callable[[], object]]:
    def read(what: Callable[[Any], object]) -> Callable[[], object]:
        return lambda: transact(db, what)

    yield read(lambda tr: feed.read(tr, "ann"))
    yield read(lambda tr: feed.read_numbered(tr, "ann"))
    yield read(lambda tr: feed.read_numbered(tr, "ann", 7))
    yield read(lambda tr: feed.latest(tr, "ann"))
    yield read(lambda tr: feed.position(tr, "ann", "phone"))
    yield read(lambda tr: feed.members(tr, "crew"))
    yield read(lambda tr: feed.is_member(tr, "crew", "ann"))
    yield read(lambda tr: [feed.edit(tr, "ann", id_, 1, sender="bob") for id_ in _ids(tr, feed, "m")])
    yield read(
        lambda tr: [feed.recall(tr, "crew", id_, sender="bob", to_group=True) for id_ in _ids(tr, feed, "b")]
    )
    yield read(lambda tr: read_all(tr.snapshot))
    yield lambda: list(verify_feed(db, feed.name))
    yield lambda: [task.run() for task in _tasks(db, feed)]
    yield read(lambda tr: feed.append(tr, "ann", "one more"))


def _ids(tr: Any, feed: Feed, kind: str) -> list[bytes]:
    prefix = feed.keys.prefix + kind.encode()
    return [
        id_of(row.key) for row in tr.snapshot.get_range(prefix, prefix_end(prefix), limit=1, reverse=True)
    ]


def _tasks(db: Any, feed: Feed) -> list[Task]:
    found = transact(db, lambda tr: readable_feeds(tr.snapshot))
    return [task for config in found if config.name == feed.name for task in feed_part(db, config).make()]


def test_whatever_row_is_broken_all_that_looks_at_the_feed_says_so(db: Any, feed: Feed) -> None:
    rows = stores.contents(db)
    ours = sorted(key for key in rows if key.startswith(FeedKeys(feed.name).prefix))
    for rng in searched(60):
        key = rng.choice(ours)
        changed = {**rows, key: broken(rows[key], rng)}
        stores.put(db, changed)
        for look in _looks(db, feed):
            with stores.clear_errors(f"with {key!r} broken: {changed[key][:60]!r}"):
                look()


@pytest.mark.parametrize("sent", TIMES, ids=["10**400", "-10**400", "10**19", "-1", "year 9999"])
def test_a_message_of_an_impossible_time_is_one_line(
    db: Any, feed: Feed, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_STORE", f"embedded:{db.path}")
    rows = transact(db, lambda tr: tr.get_range(*feed.keys.messages(ANN), limit=1).to_list())
    transact(db, lambda tr: tr.set(rows[0].key, codec.encode([sent, "text"])))
    for command in (["feed", "read", "chat", "ann"], ["feed", "read", "chat", "ann", "--json"]):
        status, said = run(*command)
        assert status == 1
        assert "a message is not one that cq wrote" in said
        assert said.count("\n") == 1
    assert "a message is not one that cq wrote" in run("feed", "verify", "chat")[1]


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("key", ["numbered", "removed"])
def test_a_mark_with_a_number_after_which_there_is_none_is_refused(
    db: Any, feed: Feed, key: str, number: int
) -> None:
    place = getattr(feed.keys, key)(ANN)
    transact(db, lambda tr: tr.set(place, mark(bytes(ID_BYTES), number)))
    for look in (lambda tr: feed.read_numbered(tr, "ann"), lambda tr: feed.read_numbered(tr, "ann", 3)):
        with pytest.raises(CorruptData, match="last message is not one that cq wrote"):
            transact(db, look)
    assert "last message is not one that cq wrote" in "".join(
        each.what for each in verify_feed(db, feed.name)
    )
