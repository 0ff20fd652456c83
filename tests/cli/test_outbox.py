"""`cq outbox`: what its commands do, and what they say."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from tests.cli.conftest import Here


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """The application's database."""
    file = tmp_path / "shop.db"
    monkeypatch.setenv("CQ_OUTBOX_URL", f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        yield connection


@pytest.mark.usefixtures("impatient")
def test_an_outbox_from_its_beginning_to_its_end(here: Here, shop: sqlite3.Connection) -> None:
    here("configure", "words", "--combiner", "sum")
    assert here("outbox", "init", "words").out == "created cq_outbox, cq_outbox_progress\n"
    assert here("outbox", "init", "words").out == "all tables exist, as expected\n"
    with shop:
        cq.outbox.add(shop, "words", {"a": 1})
        shop.execute("INSERT INTO cq_outbox (queue, key_json, update_json) VALUES ('words', '\"b\"', 'no')")
    assert "OK     outbox of words: rows to add: 2" in here("doctor").out
    assert here("worker", "words", "--drain").status == 0
    assert here("get", "words", "a").out == "a\t1\n"
    (row,) = here("outbox", "aside", "words", "--json").rows()
    doctor = here("doctor").out
    verified = here("verify", "words")
    shop.execute("UPDATE cq_outbox SET update_json = '2'")
    shop.commit()

    assert (row["key"], row["update"], row["error"].split(":")[0]) == ('"b"', "no", "update_json is not JSON")
    assert "rows that the queue refuses: 1: `cq outbox aside words`" in doctor
    assert here("link", "list", "words", "--json").rows()[0]["aside"] is None
    assert verified.status == 0, verified.out
    assert here("outbox", "retry", "words").out == "workers add 1 row again\n"
    assert here("worker", "words", "--drain").status == 0
    assert here("get", "words", "b").out == "b\t2\n"
    assert here("outbox", "aside", "words").out == "nothing is set aside in the outbox of queue 'words'\n"
    assert here("link", "rebase", "words", "outbox").out == "both databases agree: nothing is changed\n"
    shop.execute("DELETE FROM cq_outbox_progress")
    shop.commit()
    here("worker", "words", "--drain")
    assert "the outbox of queue 'words' is stopped" in here("status").err + here("status").out
    assert here("link", "rebase", "words", "outbox").out.startswith(
        "link 'outbox' of queue 'words' continues"
    )
    assert here("outbox", "remove", "words").out == "queue 'words' has no outbox any more\n"
    assert "has no outbox" in here("outbox", "aside", "words").err


def test_tables_that_were_dropped_are_named_with_the_command_that_creates_them(
    here: Here, shop: sqlite3.Connection
) -> None:
    here("configure", "words", "--combiner", "sum")
    here("outbox", "init", "words")
    shop.execute("DROP TABLE cq_outbox")
    shop.execute("DROP TABLE cq_outbox_progress")
    shop.commit()

    for command in ("outbox aside words", "outbox retry words", "link rebase words outbox"):
        assert re.search(
            "no such table: cq_outbox.*: `cq outbox init QUEUE` creates it", here(*command.split()).err
        )


def test_rows_that_no_worker_has_read_are_unknown(here: Here, shop: sqlite3.Connection) -> None:
    here("configure", "words", "--combiner", "sum")
    here("outbox", "init", "words")
    with shop:
        cq.outbox.add(shop, "words", {"a": 1})
    (link,) = here("link", "list", "--json").rows()
    listed = " ".join(here("link", "list").out.split())
    in_status = here("status", "--json").rows()[0]["outbox"]

    assert (link["rows"], link["bytes"], in_status["rows"]) == (None, None, None)
    assert "waiting rows bytes oldest" in listed
    assert "0 of 1 - - -" in listed


@pytest.mark.parametrize("command", ["init", "verify", "rebuild", "aside", "remove"])
@pytest.mark.usefixtures("shop")
def test_commands_of_links_that_outboxes_lack_name_those_that_they_have(here: Here, command: str) -> None:
    here("configure", "words", "--combiner", "sum")
    here("outbox", "init", "words")
    refused = here("link", command, "words", "outbox")
    assert refused.status == 1
    assert (
        "the outbox of queue 'words' sends nothing: `cq outbox --help` lists what can be done" in refused.err
    )


def test_a_url_in_place_of_a_variable_is_not_shown(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    wrong = here("outbox", "init", "words", "--url-env", "postgresql://me:secret@host/shop")

    assert wrong.status == 2
    assert "secret" not in wrong.err


def test_doctor_names_rows_of_a_queue_without_an_outbox(
    here: Here, db: Any, shop: sqlite3.Connection
) -> None:
    here("configure", "words", "--combiner", "sum")
    here("outbox", "init", "words")
    Membership(db, every=600.0).beat(MemberReport())
    before = here("doctor")
    with shop:
        cq.outbox.add(shop, "wrods", {"a": 1, "b": 1})
    after = here("doctor")
    with shop:
        cq.outbox.add(shop, "words", {"a": 1})
    removed = here("outbox", "remove", "words")

    assert "OK     outbox table in $CQ_OUTBOX_URL: each row is of a queue with an outbox" in before.out
    assert before.status == 0, before.out
    assert (
        "TO DO  outbox table in $CQ_OUTBOX_URL: rows wait for queues that have no outbox: 'wrods' (2)"
        in after.out
    )
    assert after.status == 1
    assert (
        removed.out
        == "queue 'words' has no outbox any more; no worker moves the 1 row that it leaves in the table\n"
    )
