"""`cq link`: what its commands do for tables, and what they print."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.feeds.feed import Feed
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Here
from tests.kit.queues import config_of
from tests.links.linkhelpers import combine, step


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the reporting database."""
    file = tmp_path / "report.db"
    monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{file}")
    return file


@pytest.fixture
def words(here: Here, report: Path) -> None:
    """The queue `words`, with a link to the table `word_counts`."""
    assert here("configure", "words", "--export", "word_counts").status == 0
    assert here("link", "init", "words").out == "created cq_progress, word_counts\n"


def rows(report: Path, table: str = "word_counts") -> list[Any]:
    with closing(sqlite3.connect(report)) as connection:
        return connection.execute(f"SELECT key, value FROM {table} ORDER BY key").fetchall()  # noqa: S608


def change(report: Path, statement: str) -> None:
    with closing(sqlite3.connect(report)) as connection, connection:
        connection.execute(statement)


def count(db: Any, **updates: int) -> None:
    """Add updates, combine them and send the changes."""
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, updates))
    Worker(db, queues=["words"]).drain()


def test_a_link_without_a_table_is_refused_before_its_changes_are_waited_for(
    here: Here, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CQ_HOOK_URL", "http://127.0.0.1:9/")
    assert here("configure", "words", "--webhook", "CQ_HOOK_URL").status == 0
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 1}))
    combine(db, "words")

    refused = here("link", "verify", "words")

    assert refused.status == 1
    assert refused.err.startswith("cq: link 'webhook' of queue 'words' has no table: ")


@pytest.mark.usefixtures("words")
def test_a_table_gets_the_values_and_is_verified(here: Here, db: Any, report: Path) -> None:
    count(db, a=1, b=2)
    count(db, b=-2)

    assert rows(report) == [("a", 1)]
    (totals,) = here("link", "verify", "words", "--json").rows()
    expected = {"values": 1, "rows": 1, "differences": 0, "waiting": 0, "whole": True, "notes": []}
    assert expected.items() <= totals.items()
    (status,) = here("link", "list", "words", "--json").rows()
    assert (status["target"], status["state"], status["waiting_buckets"]) == ("word_counts", "active", 0)
    row = here("link", "list").out.splitlines()[1]
    assert " ".join(row.split()) == "words export word_counts 0 of 8 0 0 - 0.0 0 active"


@pytest.mark.usefixtures("words")
def test_differences_are_named_and_a_rebuild_mends_them(here: Here, db: Any, report: Path) -> None:
    count(db, a=1, b=2)
    change(report, "UPDATE word_counts SET value = 9 WHERE key = 'a'")
    change(report, "UPDATE word_counts SET key = 'z' WHERE key = 'b'")

    found = here("link", "verify", "words")
    assert found.status == 4
    assert "`cq link rebuild words export` sends all values again" in found.err
    lines = sorted(line.split("\t") for line in found.out.splitlines())
    assert {line[0] for line in lines} == {"link-table"}
    assert sorted(line[2:] for line in lines) == [
        ["key a", "the queue has 1, the table {'key': 'a', 'value': 9}"],
        ["key b", "the queue has 2, the table no row"],
        ["key z", "the queue has no value, the table {'key': 'z', 'value': 2}"],
    ]
    assert "3 differences" in found.err
    (first, *_, totals) = here("link", "verify", "words", "--json").rows()
    assert first.keys() >= {"key", "value", "row", "reason"}
    assert first.keys() >= {"kind", "where", "what", "repairable", "repaired"}
    assert totals["differences"] == 3

    assert here("link", "rebuild", "words", "--json").rows() == [
        {"queue": "words", "link": "export", "generation": 2}
    ]
    assert here("link", "list", "--json").rows()[0]["state"] == "filling"
    assert here("link", "verify", "words").err.startswith(
        "cq: link 'export' of queue 'words' is still being filled"
    )
    Worker(db, queues=["words"]).drain()
    assert here("link", "verify", "words").status == 0
    assert here("link", "list", "--json").rows()[0]["state"] == "active"


@pytest.mark.usefixtures("words")
def test_a_database_that_was_emptied_is_said_and_mended(here: Here, db: Any, report: Path) -> None:
    count(db, a=1)
    change(report, "DELETE FROM cq_progress")
    change(report, "DELETE FROM word_counts")
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"b": 2}))
    combine(db, "words")
    step(db, "words")

    (status,) = here("link", "list", "words", "--json").rows()
    assert status["state"] == "stopped"
    assert "`cq link rebuild words export` sends all values again" in status["error"]
    assert status["error"] in here("link", "list").err.replace("\n", " ")
    assert (
        here("link", "rebase", "words").out
        == "link 'export' of queue 'words' continues from the current state\n"
    )
    Worker(db, queues=["words"]).drain()
    assert rows(report) == [("b", 2)]
    assert here("link", "rebuild", "words").status == 0
    Worker(db, queues=["words"]).drain()
    assert rows(report) == [("a", 1), ("b", 2)]


@pytest.mark.usefixtures("words")
def test_what_was_set_aside_is_listed_until_a_rebuild(here: Here, db: Any) -> None:
    count(db, big=2**63, a=1)

    (entry,) = here("link", "aside", "words", "--json").rows()
    assert (entry["key"], entry["value"]) == ("big", 2**63)
    assert "exceeds the 64 bits" in entry["error"]
    assert "big" in here("link", "aside", "words").out
    assert here("link", "list", "--json").rows()[0]["aside"] == 1
    count(db, big=-(2**63))
    here("link", "rebuild", "words")
    Worker(db, queues=["words"]).drain()
    assert here("link", "aside", "words", "--json").rows() == []


def test_what_is_missing_is_said_in_one_line(
    here: Here, db: Any, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("link", "list").out.startswith("no queue has a link: begin with `cq configure")
    assert "is not configured" in here("link", "init", "words").err
    here("configure", "words", "--combiner", "sum")
    assert here("link", "list", "words").out.startswith(
        "queue 'words' has no link: begin with `cq configure words --link"
    )
    assert "run `cq configure words --link NAME=KIND:TARGET` first" in here("link", "verify", "words").err
    here("configure", "words", "--export", "word_counts")
    assert "run `cq link init words export`" in here("link", "verify", "words").err
    monkeypatch.delenv("CQ_REPORTING_URL")
    outcome = here("link", "init", "words")
    assert outcome.err.startswith("cq: $CQ_REPORTING_URL is not set: give the URL")
    assert outcome.status == 2
    monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{report}")
    assert here("link", "init", "words").status == 0
    assert "has the table 'word_counts'" in here("link", "init", "words").out


def test_a_missing_driver_is_an_error_with_the_extra(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "postgresql+psycopg://host/database")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    here("configure", "words", "--export", "word_counts")

    ended = here("link", "init", "words")

    assert (ended.status, ended.out) == (2, "")
    assert ended.err.endswith("is not installed: run `pip install 'combine-queue[postgresql]'`\n")
    assert ended.err.count("\n") == 1


# Several links


@pytest.fixture
def linked(here: Here, report: Path) -> None:
    """The queue `words`, with links to two tables."""
    assert here("configure", "words", "--link", "first=sql:counts", "--link", "second=sql:others").status == 0
    assert here("link", "init", "words", "first").out == "created cq_progress, counts\n"
    assert here("link", "init", "words", "second").out == "created others\n"


def states(here: Here) -> dict[str, str]:
    return {row["link"]: row["state"] for row in here("link", "list", "words", "--json").rows()}


@pytest.mark.usefixtures("linked")
def test_a_paused_link_keeps_its_changes_until_it_is_resumed(here: Here, db: Any, report: Path) -> None:
    assert here("link", "pause", "words", "second").out == "link 'second' of queue 'words' is paused\n"
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 1}))
    combine(db, "words")
    step(db, "words", "first")
    step(db, "words", "second")

    assert (rows(report, "counts"), rows(report, "others")) == ([("a", 1)], [])
    assert states(here)["second"] == "paused"
    assert "the link 'words second' is paused" in here("status").out
    waits = here("link", "verify", "words", "second", "--wait", "1000000s").err
    assert "not waiting for them, as the link is paused" in waits

    assert here("link", "resume", "words", "second").out == "link 'second' of queue 'words' is active\n"
    Worker(db, queues=["words"]).drain()
    assert rows(report, "others") == [("a", 1)]
    assert states(here) == {"first": "active", "second": "active"}
    assert here("link", "verify", "words", "second").status == 0


@pytest.mark.usefixtures("linked")
def test_a_command_without_a_name_lists_the_links_of_the_queue(here: Here) -> None:
    for command in ("init", "check", "verify", "rebuild", "rebase", "pause", "resume", "remove", "aside"):
        ended = here("link", command, "words")
        assert (ended.status, ended.out) == (1, "")
        assert ended.err == "cq: queue 'words' has several links: give the name of one of first, second\n"
        ended = here("link", command, "words", "third")
        assert (ended.status, ended.out) == (1, "")
        assert ended.err == "cq: queue 'words' has no link 'third': expected one of first, second\n"


@pytest.mark.usefixtures("linked")
def test_a_removed_link_leaves_its_table_and_the_other_links(here: Here, db: Any, report: Path) -> None:
    count(db, a=1)
    here("link", "pause", "words", "second")
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"a": 1}))
    combine(db, "words")

    asked = here("link", "remove", "words", "second")
    assert asked.status == 2
    assert "link 'second' has 1 row of changes that are not sent. Go on?" in asked.err
    assert here("link", "remove", "words", "second", "--yes").out == (
        "queue 'words' has no link 'second' any more\n"
    )

    assert states(here) == {"first": "active"}
    Worker(db, queues=["words"]).drain()
    assert (rows(report, "counts"), rows(report, "others")) == ([("a", 2)], [("a", 1)])
    here("configure", "words", "--link", "second=sql:others")
    Worker(db, queues=["words"]).drain()
    assert rows(report, "others") == [("a", 2)]
    assert states(here) == {"first": "active", "second": "active"}


@pytest.mark.usefixtures("linked")
def test_a_rebuild_by_configure_takes_the_name_of_a_link(here: Here, db: Any, report: Path) -> None:
    count(db, a=1)
    change(report, "DELETE FROM others")
    assert here("configure", "words", "--rebuild", "second").status == 0
    Worker(db, queues=["words"]).drain()
    assert rows(report, "others") == [("a", 1)]
    assert "has no observer 'third'" in here("configure", "words", "--rebuild", "third").err


@pytest.mark.parametrize(
    ("added", "removal", "observer"),
    [
        (["--link", "hook=webhook:CQ_HOOK_URL"], ["--no-link", "hook"], "link:hook"),
        (["--export", "word_counts"], ["--no-link", "export"], "link:export"),
        (["--kafka", "words"], ["--no-link", "kafka"], "link:kafka"),
        (["--feed", "words"], ["--no-feed"], "feed"),
        (["--top", "5"], ["--no-top"], "top"),
    ],
)
def test_an_option_of_configure_removes_what_another_one_has_added(
    here: Here, db: Any, added: list[str], removal: list[str], observer: str
) -> None:
    def observers() -> list[str]:
        return [each.name for each in config_of(db, "words").observers]

    Feed[Any]("words").configure(db)
    here("configure", "words", "--link", "stays=kafka:other", *added)
    assert sorted(observers()) == sorted(["link:stays", observer])
    both = here("configure", "words", *added, *removal)
    assert (both.status, len(observers())) == (2, 2)
    assert "give either --" in both.err
    assert here("configure", "words", *removal).status == 0
    assert observers() == ["link:stays"]


def test_several_links_are_removed_at_once_and_an_unknown_one_changes_nothing(here: Here, db: Any) -> None:
    here("configure", "words", "--link", "a=kafka:a", "--link", "b=kafka:b", "--link", "c=kafka:c")
    assert here("configure", "words", "--no-link", "a", "--no-link", "c").status == 0
    mistaken = here("configure", "words", "--no-link", "unknown")
    assert (mistaken.status, mistaken.err) == (0, "cq: queue 'words' has no link 'unknown'\n")
    assert [each.name for each in config_of(db, "words").observers] == ["link:b"]
