"""`cq verify`: lines, totals and exit statuses. What is found is tested with the library."""

from __future__ import annotations

from typing import Any

import pytest

import cq
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.testing import drain
from cq.verify.layout import shown
from tests.cli.conftest import Here
from tests.kit.queues import add, put

KEYS = QueueKeys("words")


@pytest.fixture
def words(here: Here, db: Any) -> Any:
    """The store of `here`, with a queue of three values."""
    cq.configure(db, "words", buckets=2)
    add(db, "words", {"a": 1, "b": 1, "c": 1})
    drain(db, "words")
    return db


def test_nothing_to_tell_ends_with_0(here: Here, words: Any) -> None:
    ended = here("verify", "words")

    assert (ended.status, ended.out) == (0, "")
    assert ended.err.startswith("cq verify: ")
    assert ended.err.endswith(" keys checked, 0 differences\n")
    (totals,) = here("verify", "words", "--json").rows()
    assert (totals["differences"], totals["repaired"], totals["notes"]) == (0, 0, [])
    assert totals["checked"] > 3


def test_differences_are_named_a_line_each_and_end_with_4(here: Here, words: Any) -> None:
    put(words, {KEYS.prefix + b"~junk\n": b""})
    put(words, {KEYS.value(codec.encode("a")): codec.encode(0)})

    ended = here("verify", "words")

    lines = [line.split("\t") for line in ended.out.splitlines()]
    assert (ended.status, [line[0] for line in lines]) == (4, ["value-empty", "unknown-key"])
    assert lines[0][2:] == ["key a", "0 means no value"]
    assert lines[1][1] == r"cq/q/words/~junk\x0a"
    assert "2 differences\n`cq verify --repair` repairs everything that can be derived\n" in ended.err


def test_a_repair_ends_with_0_once_all_is_mended(here: Here, words: Any) -> None:
    put(words, {KEYS.value(codec.encode("a")): codec.encode(0)})

    mended = here("verify", "words", "--repair", "--json")

    assert mended.status == 0
    difference, totals = mended.rows()
    assert difference == {
        "kind": "value-empty",
        "where": shown(KEYS.value(codec.encode("a"))),
        "key": "a",
        "what": "0 means no value",
        "repairable": True,
        "repaired": True,
    }
    assert (totals["differences"], totals["repaired"]) == (1, 1)
    assert here("verify", "words").status == 0


def test_what_cannot_be_mended_ends_with_4_also_when_repaired(here: Here, words: Any) -> None:
    put(words, {KEYS.value(codec.encode("a")): b"\xff"})

    ended = here("verify", "words", "--repair")

    assert (ended.status, ended.out.count("\n")) == (4, 1)
    assert "repaired" not in ended.out
    assert "--repair" not in ended.err


def test_lines_are_bounded(here: Here, words: Any) -> None:
    for number in range(5):
        put(words, {KEYS.prefix + b"~junk%d" % number: b""})

    ended = here("verify", "words", "--limit", "2")

    assert (ended.status, ended.out.count("\n")) == (4, 2)
    assert "and 3 more\n" in ended.err
    assert len(here("verify", "words", "--limit", "0", "--json").rows()) == 1


def test_a_configuration_that_cannot_be_read_is_said(here: Here, words: Any) -> None:
    put(words, {KEYS.config: b"\xff"})

    ended = here("verify", "words", "--repair")

    assert (ended.status, ended.out.split("\t")[0]) == (4, "config")
    assert "no other data of the queue can be checked" in ended.err


def test_a_table_that_cannot_be_compared_is_said(here: Here, words: Any) -> None:
    here("configure", "words", "--export", "counts")

    ended = here("verify", "words")

    said = "the table of link 'export' was not compared with the values: $CQ_REPORTING_URL is not set"
    assert said in ended.err


def test_a_reporting_database_that_does_not_answer_is_an_error(
    here: Here, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here("configure", "words", "--export", "counts")
    drain(words, "words")
    monkeypatch.setenv("CQ_REPORTING_URL", "sqlite:////nowhere/at/all.db")

    ended = here("verify", "words")

    assert (ended.status, ended.err.count("\n"), ended.err[:4]) == (1, 1, "cq: ")
