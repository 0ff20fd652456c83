"""`cq feed` and `cq configure --feed`."""

from __future__ import annotations

import json
from typing import Any

from cq.feeds.feed import Feed
from cq.keys.feed import encode_name
from cq.observers.feeds.trim import FeedTrimTask
from cq.store.transact import transact
from tests.cli.conftest import Cli, Here


def test_a_store_without_feeds_says_how_to_begin(here: Here, db: Any) -> None:
    assert (
        here("feed", "list").out
        == "no feed is configured in this store: begin with `cq feed configure FEED`\n"
    )


def test_messages_are_appended_and_read(here: Here) -> None:
    assert here("feed", "configure", "chat", "--numbers", "--keep", "30d", "--json").rows() == [
        {
            "feed": "chat",
            "numbers": True,
            "keep_seconds": 30 * 86_400.0,
            "keep_last": None,
            "unread": False,
            "to_deliver": 0,
            "to_number": 0,
        }
    ]
    for text in ("one", "two"):
        assert here("feed", "append", "chat", "ann", text).status == 0
    assert "expected a receiver" in here("feed", "append", "chat", "", "nobody's").err

    lines = here("feed", "read", "chat", "ann").out.splitlines()
    first = lines[0].split("\t")
    assert [line.split("\t")[1:] for line in lines] == [["", "one"], ["", "two"]]
    (row,) = here("feed", "read", "chat", "ann", "--after", first[0], "--json").rows()
    assert (row["body"], row["id"] > first[0]) == ("two", True)
    listed = here("feed", "list").out
    assert "chat" in listed
    assert here("feed", "list", "--json").rows()[0]["to_number"] == 1
    assert here("worker", "--drain").status == 0
    assert here("feed", "list", "--json").rows()[0]["to_number"] == 0


def test_a_message_to_a_group_reaches_its_members(here: Here, db: Any) -> None:
    here("feed", "configure", "chat")
    feed = Feed("chat")
    transact(db, lambda tr: feed.join(tr, "crew", "ann"))
    transact(db, lambda tr: feed.send(tr, "ann", ("bob", 1), "a copy"))
    here("feed", "append", "chat", "crew", "hello, all", "--group")
    assert here("feed", "list", "--json").rows()[0]["to_deliver"] == 1
    here("worker", "chat", "--drain")

    copy, row = here("feed", "read", "chat", "ann", "--json").rows()

    assert (row["group"], row["body"], "to" in row) == ("crew", "hello, all", False)
    assert (copy["to"], copy["body"]) == (["bob", 1], "a copy")


def test_a_reader_is_followed_and_told_what_it_has_missed(cli: Cli, here: Here, db: Any) -> None:
    here("feed", "configure", "chat", "--numbers", "--keep-last", "1")
    following = cli.start("feed", "follow", "chat", "ann", "--json")
    here("feed", "append", "chat", "ann", "one")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["body"] == "one"
    here("feed", "append", "chat", "ann", "two")
    assert json.loads(following.stdout.readline())["body"] == "two"
    following.kill()
    here("worker", "--drain")  # numbers them
    FeedTrimTask(db, Feed("chat").configure(db)).run()

    shown = here("feed", "read", "chat", "ann")

    assert "have been removed" in shown.err
    assert shown.out.endswith("\ttwo\n")


def test_the_changes_of_a_queue_are_told(here: Here) -> None:
    assert "cq feed configure" in here("configure", "words", "--feed", "changes").err
    here("feed", "configure", "changes")
    assert "observers feed@1" in here("configure", "words", "--feed", "changes").out
    here("add", "words", "a=2")
    here("worker", "--drain")

    assert [row["body"] for row in here("feed", "read", "changes", "words", "--json").rows()] == [
        ["a", None, 2]
    ]
    assert "observers" not in here("configure", "words", "--no-feed").out
    assert here("configure", "words", "--feed", "x", "--no-feed").status == 2


def test_differences_are_lines_and_an_exit_status(here: Here, db: Any) -> None:
    here("feed", "configure", "chat", "--numbers")
    here("feed", "append", "chat", "ann", "one")
    verified = here("feed", "verify", "chat")
    assert (verified.status, verified.out, verified.err) == (0, "", "no differences\n")
    transact(db, lambda tr: tr.clear(Feed("chat").keys.unnumbered(encode_name("", "ann"))))

    verified = here("feed", "verify", "chat")

    assert (verified.status, verified.err) == (4, "1 difference\n")
    assert verified.out == "receiver 'ann'\tmessages have no numbers, and no worker is notified\n"
    assert here("feed", "verify", "chat", "--json").rows()[0]["whose"] == "receiver 'ann'"


def test_what_cannot_be_done_is_said_in_one_line(here: Here, db: Any) -> None:
    failed = here("feed", "delete", "chat")
    assert (failed.status, "cq feed configure chat" in failed.err) == (1, True)
    here("feed", "configure", "chat")
    assert "id of a message" in here("feed", "read", "chat", "ann", "--after", "zz").err
    asked = here("feed", "delete", "chat")
    assert (asked.status, "--yes" in asked.err) == (2, True)
    assert here("feed", "delete", "chat", "--yes").out == "feed 'chat' is deleted\n"
    assert here("feed", "list", "--json").rows() == []
