"""`cq export list` and `cq export`: what they do for a table, and what they say."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.observers.exporters import export_tasks
from cq.observers.sql.configured import find_export
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from tests.cli.conftest import Here
from tests.observers.sql.sqlhelpers import combine


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the reporting database."""
    file = tmp_path / "report.db"
    monkeypatch.setenv("CQ_REPORTING_URL", f"sqlite:///{file}")
    return file


@pytest.fixture
def words(here: Here, report: Path) -> None:
    """The queue `words`, exported into `word_counts`."""
    assert here("configure", "words", "--export", "word_counts").status == 0
    assert here("export", "init", "words").out == "created cq_progress, cq_tables, word_counts\n"


def rows(report: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(report)) as connection:
        yield from connection.execute("SELECT key, value FROM word_counts ORDER BY key")


def change(report: Path, statement: str) -> None:
    with closing(sqlite3.connect(report)) as connection, connection:
        connection.execute(statement)


def count(db: Any, **updates: int) -> None:
    """Add updates, combine them and export what comes of it."""
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, updates))
    Worker(db, queues=["words"]).drain()


@pytest.mark.usefixtures("words")
def test_a_queue_is_exported_and_verified(here: Here, db: Any, report: Path) -> None:
    count(db, a=1, b=2)
    count(db, b=-2)

    assert list(rows(report)) == [("a", 1)]
    (totals,) = here("export", "verify", "words", "--json").rows()
    expected = {"values": 1, "rows": 1, "differences": 0, "waiting": 0, "whole": True, "notes": []}
    assert expected.items() <= totals.items()
    (status,) = here("export", "list", "words", "--json").rows()
    assert (status["table"], status["state"], status["waiting_buckets"]) == ("word_counts", "active", 0)
    assert here("export", "list").out.split()[-9:-1] == ["word_counts", "0", "of", "8", "0", "0", "-", "0"]


@pytest.mark.usefixtures("words")
def test_differences_are_named_and_a_rebuild_mends_them(here: Here, db: Any, report: Path) -> None:
    count(db, a=1, b=2)
    change(report, "UPDATE word_counts SET value = 9 WHERE key = 'a'")
    change(report, "UPDATE word_counts SET key = 'z' WHERE key = 'b'")

    found = here("export", "verify", "words")
    assert found.status == 4
    lines = sorted(line.split("\t") for line in found.out.splitlines())
    assert {line[0] for line in lines} == {"export-table"}
    assert sorted(line[2:] for line in lines) == [
        ["key a", "the queue has 1, the table {'key': 'a', 'value': 9}"],
        ["key b", "the queue has 2, the table no row"],
        ["key z", "the queue has no value, the table {'key': 'z', 'value': 2}"],
    ]
    assert "3 differences" in found.err
    (first, *_, totals) = here("export", "verify", "words", "--json").rows()
    assert first.keys() >= {"key", "value", "row", "reason"}
    assert first.keys() >= {"kind", "where", "what", "repairable", "repaired"}
    assert totals["differences"] == 3

    assert here("export", "rebuild", "words", "--json").rows() == [{"queue": "words", "generation": 2}]
    assert here("export", "list", "--json").rows()[0]["state"] == "filling"
    assert here("export", "verify", "words").err.startswith(
        "cq: the export of queue 'words' is still being filled"
    )
    Worker(db, queues=["words"]).drain()
    assert here("export", "verify", "words").status == 0
    assert here("export", "list", "--json").rows()[0]["state"] == "active"


@pytest.mark.usefixtures("words")
def test_a_database_that_was_emptied_is_said_and_mended(here: Here, db: Any, report: Path) -> None:
    count(db, a=1)
    change(report, "DELETE FROM cq_progress")
    change(report, "DELETE FROM word_counts")
    transact(db, lambda tr: cq.CombineQueue("words").add(tr, {"b": 2}))
    run_for_a_moment(db)

    (status,) = here("export", "list", "words", "--json").rows()
    assert status["state"] == "stopped"
    assert "`cq export rebuild words` exports everything again" in status["error"]
    assert status["error"] in here("export", "list").err.replace("\n", " ")
    assert (
        here("export", "rebase", "words").out
        == "the export of queue 'words' continues from the current state\n"
    )
    Worker(db, queues=["words"]).drain()
    assert list(rows(report)) == [("b", 2)]
    assert here("export", "rebuild", "words").status == 0
    Worker(db, queues=["words"]).drain()
    assert list(rows(report)) == [("a", 1), ("b", 2)]


def run_for_a_moment(db: Any) -> None:
    """Run the passes, then each task of the export once."""
    combine(db, "words")
    found = find_export(db, "words")
    for task in export_tasks(db, found.config, found.observer):
        task.run()
        task.end()


@pytest.mark.usefixtures("words")
def test_what_was_set_aside_is_listed_until_a_rebuild(here: Here, db: Any) -> None:
    count(db, big=2**63, a=1)

    (entry,) = here("export", "aside", "words", "--json").rows()
    assert (entry["key"], entry["value"]) == ("big", 2**63)
    assert "exceeds the 64 bits" in entry["error"]
    assert "big" in here("export", "aside", "words").out
    assert here("export", "list", "--json").rows()[0]["aside"] == 1
    count(db, big=-(2**63))
    here("export", "rebuild", "words")
    Worker(db, queues=["words"]).drain()
    assert here("export", "aside", "words", "--json").rows() == []


def test_what_is_missing_is_said_in_one_line(
    here: Here, db: Any, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("export", "list").out.startswith("no queue is exported: begin with `cq configure")
    assert "is not configured" in here("export", "init", "words").err
    here("configure", "words", "--combiner", "sum")
    assert "run `cq configure words --export TABLE` first" in here("export", "verify", "words").err
    here("configure", "words", "--export", "word_counts")
    assert "run `cq export init words`" in here("export", "verify", "words").err
    monkeypatch.delenv("CQ_REPORTING_URL")
    outcome = here("export", "init", "words")
    assert outcome.err.startswith("cq: $CQ_REPORTING_URL is not set: give the URL")
    assert outcome.status == 2
    monkeypatch.setenv("CQ_REPORTS", f"sqlite:///{report}")
    assert here("export", "init", "words", "--reporting-url-env", "CQ_REPORTS").status == 0
    assert here("export", "init", "words", "--reporting-url-env", "CQ_REPORTS").out.startswith(
        "all tables exist"
    )


def test_a_missing_driver_is_an_error_with_the_extra(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CQ_REPORTING_URL", "postgresql+psycopg://host/database")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    here("configure", "words", "--export", "word_counts")

    ended = here("export", "init", "words")

    assert (ended.status, ended.out) == (1, "")
    assert ended.err.endswith("is not installed: run `pip install 'combine-queue[postgresql]'`\n")
    assert ended.err.count("\n") == 1
