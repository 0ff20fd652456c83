"""`cq demo chat`: every terminal sees each message once and in order, though the processes are killed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cq.cli.demos.chat import FEED, Action, MessageRecount, Sight, act, greet, inbox_of
from cq.cli.demos.harness import DemoFailed, Steps
from cq.feeds.feed import Feed
from cq.keys.feed import encode_name
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Cli


def test_all_is_as_recounted_whoever_is_killed(cli: Cli) -> None:
    sizes = ("--users", "4", "--groups", "2", "--messages", "60", "--flood", "600")
    processes = ("--senders", "1", "--workers", "1", "--kill-every", "0.5")

    ended = cli.run("demo", "chat", *sizes, *processes, "--seed", "7", "--json")

    assert (ended.status, ended.err) == (0, "seed 7\n")
    (found,) = ended.rows()
    assert found["messages"] > 600
    assert found["received"] > 600
    assert found["changes"] > 0
    assert found["seen"] == 2 * found["received"]
    assert found["kills"] > 0
    assert not (cli.folder / "cli.db").exists()
    shown = cli.run("feed", "read", "demo_chat", "user 1", "--limit", "1", "--store", "embedded:cq-demo.db")
    assert (shown.status, len(shown.out.splitlines())) == (0, 1)


ACTIONS = [
    Action("sender", 0, "join", "g", "user 1"),
    Action("sender", 1, "group", "g"),
    Action("sender", 2, "join", "g", "user 2"),
    Action("sender", 3, "group", "g"),
    Action("sender", 4, "message", "user 1"),
    Action("sender", 5, "edit", "g", changes=1, is_group=True),
    Action("sender", 6, "recall", "user 1", changes=4),
    Action("sender", 7, "edit", "user 1", changes=4),  # too late
    Action("sender", 8, "message", "guest"),
    Action("sender", 9, "message", "guest"),
    Action("sender", 10, "forget", "guest"),
    Action("sender", 11, "edit", "guest", changes=9),  # only the copy is left
    Action("sender", 12, "message", "guest"),
]


@pytest.fixture
def feed(db: Any, tmp_path: Path) -> Feed:
    made = Feed(FEED)
    made.configure(db, numbers=True)
    steps = Steps.stored(tmp_path / "steps", b"position", ACTIONS)
    for place, action in enumerate(ACTIONS):
        for _ in range(2):  # as after a commit of which nobody knows
            transact(db, partial(act, steps=steps, place=place, action=action))
    assert transact(db, steps.done) == len(ACTIONS)
    greet(db, "user 3", 0)
    Worker(db).drain()
    return made


def test_what_was_done_is_not_done_again(db: Any, feed: Feed) -> None:
    recount = MessageRecount(db)

    assert (recount.messages, recount.changes) == (7, 3)
    for user, number in (("user 1", 5), ("user 2", 1), ("user 3", 1), ("guest", 1), ("sender", 6)):
        inbox = list(inbox_of(db, user))
        recount.compare(user, inbox)
        assert len(inbox) == number


def test_a_terminal_with_an_old_text_is_told(db: Any, feed: Feed) -> None:
    recount = MessageRecount(db)
    inbox = list(inbox_of(db, "user 1"))
    sights = [Sight(each.id, 0.0, each.changes or each.origin or each.id, each.body) for each in inbox]
    recount.compare_texts("user 1", "phone", inbox, sights)
    former = [each._replace(body=["sender", 1]) if each.body else each for each in sights]
    with pytest.raises(DemoFailed, match="an old text of message 1 of sender"):
        recount.compare_texts("user 1", "phone", inbox, former)


def test_a_difference_is_told(db: Any, feed: Feed) -> None:
    recount = MessageRecount(db)
    inbox = list(inbox_of(db, "user 1"))
    edited = next(each for each in inbox if each.edited and each.changes is None)
    former = [replace(each, body=["sender", 1]) if each is edited else each for each in inbox]
    for wrong in (inbox[1:], [*inbox, inbox[-1]], [inbox[1], inbox[0], *inbox[2:]], former):
        with pytest.raises(DemoFailed, match="user 1"):
            recount.compare("user 1", wrong)
    transact(db, lambda tr: tr.clear(feed.keys.message(encode_name("", "user 1"), inbox[0].id)))
    with pytest.raises(DemoFailed):
        recount.compare("user 1", list(inbox_of(db, "user 1")))
