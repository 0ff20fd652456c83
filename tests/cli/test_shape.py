"""`cq rebucket`, `purge`, `delete` and `drain`: what they wait for, ask and print."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import cq
from cq import admin
from cq.cli.queues.waiting import AwaitedWork, wait_for_workers
from cq.queue.limits import compare
from cq.testing import assert_values, drain
from tests.cli.conftest import Cli, Here
from tests.cli.terminal import Terminal
from tests.cli.workers import running
from tests.kit.processes import SECONDS


@pytest.fixture
def words(db: Any) -> Any:
    """A queue with a value, and an update that waits."""
    cq.configure(db, "words", buckets=4)
    queue = cq.CombineQueue("words")
    db.transact(lambda tr: queue.add(tr, {"a": 1}))
    drain(db)
    db.transact(lambda tr: queue.add(tr, {"a": 1, "b": 1}))
    return queue


def test_with_workers_they_wait_until_it_is_done(here: Here, cli: Cli, db: Any, words: Any) -> None:
    worker = running(cli)
    assert here("rebucket", "words", "--buckets", "9").out == "queue 'words' has 9 buckets\n"
    assert here("drain", "words").out == "queue 'words' is drained\n"
    assert_values(db, "words", {"a": 2, "b": 1})
    db.transact(lambda tr: words.add(tr, {"a": 1}))
    assert here("purge", "words", "--yes").out == "queue 'words' is purged\n"
    assert_values(db, "words", {})
    assert here("delete", "words", "--yes", "--json").rows() == [
        {"queue": "words", "done": "deleted", "levels": []}
    ]
    assert here("status", "words").status == 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SECONDS) == 0


@pytest.mark.usefixtures("words")
def test_without_workers_what_is_begun_is_left_to_them(here: Here, db: Any) -> None:
    assert here("rebucket", "words", "--buckets", "9", "--no-wait").out == (
        "queue 'words' has 9 buckets: workers drain the former ones\n"
    )
    again = here("rebucket", "words", "--buckets", "3")
    assert (again.status, again.out) == (1, "")
    assert "is still being rebucketed from 4 to 9 buckets: run workers, and try again later" in again.err
    late = here("drain", "words", "--timeout", "0")
    assert late.status == 1
    assert late.err.endswith(
        "not drained in time (2 rows in 4 buckets): are workers running? See `cq status`\n"
    )
    drain(db)
    assert here("rebucket", "words", "--buckets", "9").out == "queue 'words' has 9 buckets\n"
    assert_values(db, "words", {"a": 2, "b": 1})
    assert here("purge", "words", "--yes", "--no-wait", "--json").rows() == [
        {"queue": "words", "done": "being purged", "levels": []}
    ]
    drain(db)
    assert_values(db, "words", {})


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    ("command", "waits", "goes_on"),
    [
        (
            "drain words",
            "2 rows in 2 buckets: waiting for workers to combine the queued updates of queue 'words'",
            "the updates of queue 'words' stay queued until workers combine them",
        ),
        (
            "rebucket words --buckets 9",
            "4 buckets with 2 queued rows: waiting for workers to drain the former buckets of queue 'words'",
            "workers drain the former buckets of queue 'words'; `cq status words` shows it",
        ),
        (
            "purge words --yes",
            "4 buckets: waiting for workers to purge queue 'words'",
            "workers finish the purge of queue 'words'; another `cq purge` would delete later updates, too",
        ),
    ],
)
def test_a_command_that_waits_reports_what_for_and_that_no_worker_is_alive(
    cli: Cli, command: str, waits: str, goes_on: str
) -> None:
    waiting = cli.start(*command.split())
    assert waiting.stderr is not None
    lines = [waiting.stderr.readline().decode() for _ in range(2)]
    assert lines == [f"{waits}\n", "no worker is alive: run `cq worker`\n"]

    waiting.send_signal(signal.SIGINT)

    out, err = waiting.communicate(timeout=SECONDS)
    assert (waiting.returncode, out) == (130, b"")
    assert err.decode() == f"stopped waiting: {goes_on}\n"


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    ("typed", "status", "is_deleted"),
    [
        ("y\n", 0, True),
        ("YES\n", 0, True),
        ("\n", 1, False),
        ("what?\n", 1, False),
        ("\x04", 1, False),
        ("", 130, False),
    ],
)
def test_a_question_is_answered_and_an_interrupt_ends_it(
    cli: Cli, db: Any, typed: str, status: int, is_deleted: bool
) -> None:
    with Terminal(cli, "delete", "words") as terminal:
        terminal.prompt("delete queue 'words' with all data? [y/N]: ")
        if typed:
            terminal.type(typed)
        else:
            terminal.interrupt()
        said = terminal.output()

    assert terminal.process.returncode == status
    assert ("no change was made" in said) == (status == 1)
    assert (admin.status(db) == []) == is_deleted


@pytest.mark.usefixtures("words")
def test_a_worker_that_starts_ends_the_wait(cli: Cli) -> None:
    waiting = cli.start("drain", "words")
    assert waiting.stderr is not None
    assert b"2 rows in 2 buckets" in waiting.stderr.readline()

    running(cli)

    out, _ = waiting.communicate(timeout=SECONDS)
    assert (waiting.returncode, out) == (0, b"queue 'words' is drained\n")


@pytest.mark.usefixtures("words")
def test_what_ends_between_two_looks_is_not_waited_for(db: Any, capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter([False, True])
    awaited = AwaitedWork("words", "drain the former buckets of", lambda found: "", "")
    wait_for_workers(db, awaited, lambda: next(looks))
    assert capsys.readouterr().err == ""


def test_a_comparison_of_a_table_reports_what_it_waits_for(here: Here, cli: Cli) -> None:
    os.environ["CQ_REPORTING_URL"] = f"sqlite:///{cli.folder / 'report.db'}"  # `here` puts it back
    here("configure", "words", "--export", "counts")
    here("link", "init", "words")
    here("add", "words", "a=1")
    here("worker", "--drain", "--only", "combine")

    said = here("link", "verify", "words", "--wait", "0.1s").err.splitlines()

    waits = "1 row; waiting for workers to send them, for up to 0.1 s"
    assert said[0] == f"changes of queue 'words' that are not sent yet: {waits}"


@pytest.mark.usefixtures("impatient")
def test_a_comparison_of_a_table_does_not_wait_for_a_stopped_link(here: Here, cli: Cli) -> None:
    table = cli.folder / "report.db"
    os.environ["CQ_REPORTING_URL"] = f"sqlite:///{table}"  # `here` puts it back
    here("configure", "words", "--export", "counts")
    here("link", "init", "words")
    emptied = table.read_bytes()
    here("add", "words", "a=1")
    here("worker", "--drain")
    table.write_bytes(emptied)
    here("add", "words", "a=1")
    here("worker", "--drain")

    ended = here("link", "verify", "words", "--wait", "1000000s")

    assert ended.err.startswith(
        "changes of queue 'words' that are not sent yet: 1 row; not waiting for them, as the link is stopped: "
    )
    assert "keys of the table that were not compared, as their changes are not sent yet: 1" in ended.err
    assert ended.status == 1


@pytest.mark.usefixtures("words")
def test_a_paused_queue_is_said_instead_of_waiting_for_ever(here: Here) -> None:
    here("pause", "words", "--reason", "for this test")
    for command in (["drain", "words"], ["purge", "words", "--yes"], ["rebucket", "words", "--buckets", "2"]):
        ended = here(*command)
        if command[0] == "rebucket":
            assert "still being purged" in ended.err
        else:
            assert "paused (for this test): run `cq resume words`, then workers continue" in ended.err
        assert ended.status == 1


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("command", ["purge", "delete"])
def test_nothing_is_deleted_unless_somebody_is_sure(here: Here, db: Any, command: str) -> None:
    ended = here(command, "words")
    assert ended.status == 2
    assert "Confirm with --yes" in ended.err
    drain(db)
    assert_values(db, "words", {"a": 2, "b": 1})
    for missing in ("purge", "delete", "drain"):
        assert "not configured" in here(missing, "none", *(["--yes"] if missing != "drain" else [])).err


def test_limits_are_shown_set_and_removed(here: Here, db: Any, words: Any) -> None:
    assert here("limit", "words").out == "queue 'words': no limits\n"
    here("limit", "words", "--max-age", "10m", "--max-bytes", "10", "--when-full", "admit")
    assert compare(db, "words")  # as a worker does once a second

    shown = here("limit", "words").out

    assert shown == ("queue 'words': 600 s, 10 bytes, then admit; full: more than 10 bytes are queued\n")
    (found,) = here("limit", "words", "--json").rows()
    assert found == {
        "queue": "words",
        "max_seconds": 600,
        "max_bytes": 10,
        "when_full": "admit",
        "full": "more than 10 bytes are queued",
        "levels": [],
    }
    here("limit", "words", "--none")
    assert here("limit", "words").out == "queue 'words': no limits\n"
