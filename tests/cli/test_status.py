"""`cq status`, `cq health`, `cq doctor` and `cq copy`, as operators run them."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import cq
from cq.cli.operate import status
from cq.keys import QueueKeys
from cq.keys.link import OutboxKeys
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from tests.cli.conftest import Cli, Here
from tests.cli.web.dashboards import serving
from tests.cli.workers import running, wait_for, wait_for_workers
from tests.kit.faults import TIMED_OUT, FailedCalls
from tests.kit.processes import SECONDS, wait_until
from tests.kit.queues import add


def test_workers_and_what_they_do_are_shown(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    cq.configure(db, "other")
    worker = running(cli, "words")
    (member,) = wait_for_workers(db, 1)
    add(db, "words", {"a": 1})
    wait_for(db, "words", "a", 1)

    # Its first beat comes before it has taken up its tasks, the next one within seconds.
    wait_until(lambda: here("status", "--json").rows()[-1]["workers"][0]["buckets"], worker)
    *queues, last = here("status", "--json").rows()
    shown = here("status").out

    assert [queue["name"] for queue in queues] == ["other", "words"]
    assert [queue["workers"] for queue in queues] == [0, 1]
    (found,) = last["workers"]
    assert (found["id"], found["pid"], found["alive"]) == (member.id.hex(), worker.pid, True)
    assert (found["queues"], found["buckets"]) == (["words"], 1)
    assert member.id.hex() in shown
    assert "queue 'other': no worker combines it" in shown


def test_watching_prints_a_block_each_time_until_told_to_stop(cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    watching = cli.start("status", "--watch")
    assert watching.stdout is not None
    heads = 0
    for line in watching.stdout:
        heads += line.startswith(b"queue")
        if heads == 2:
            break
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=SECONDS)
    assert (watching.returncode, err) == (0, b"")


def test_watching_with_json_prints_lines(cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    watching = cli.start("status", "--watch", "--json")
    assert watching.stdout is not None
    lines = [json.loads(watching.stdout.readline()) for _ in range(4)]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=SECONDS)
    assert [next(iter(line)) for line in lines] == ["name", "workers"] * 2
    assert watching.returncode == 0


def test_the_past_hour_is_shown_with_a_chart_of_its_minutes(here: Here, db: Any) -> None:
    cq.configure(db, "words")
    cq.configure(db, "other")
    add(db, "words", {"a": 1, "b": 1})
    assert here("worker", "--drain", "words").status == 0

    lines = here("status", "words", "--history").out.splitlines()
    assert lines[0].split() == ["queue", "figure", "past", "hour", "its", "minutes"]
    shown = {line.split()[1]: line for line in lines[1:]}
    assert shown.keys() == {"updates", "passes", "conflicts", "set", "lag"}
    assert shown["updates"].split()[:3] == ["words", "updates", "2"]
    assert shown["updates"].count("█") == 1
    assert shown["conflicts"].split()[2:] == ["0", "▁" * 60]

    found = {row["name"]: row["minutes"] for row in here("status", "--history", "--json").rows()}
    assert {name: len(minutes) for name, minutes in found.items()} == {"other": 60, "words": 60}
    assert sum(minute["updates"] for minute in found["words"]) == 2

    assert here("status", "missing", "--history").status == 1
    assert here("status", "--history", "--watch").status == 2


def test_a_worker_without_history_stores_none(here: Here, db: Any) -> None:
    cq.configure(db, "words")
    add(db, "words", {"a": 1})
    assert here("worker", "--drain", "--no-history").status == 0
    (found,) = here("status", "--history", "--json").rows()
    assert sum(minute["updates"] for minute in found["minutes"]) == 0


def test_health_is_told_by_the_exit_status(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    ended = here("health", "--here")
    assert (ended.status, ended.err) == (1, "")
    assert ended.out.startswith("no worker is alive on ")
    running(cli)
    wait_for_workers(db, 1)
    ended = here("health", "--here")
    assert (ended.status, ended.out) == (0, "healthy\n")


def test_health_is_a_line_of_json(here: Here, db: Any) -> None:
    ended = here("health", "--json")
    (found,) = ended.rows()
    assert ended.status == 1
    assert found == {"healthy": False, "problems": ["no worker is alive: none has registered"]}


def test_the_rows_that_the_worker_of_an_outbox_has_read_are_shown(here: Here, db: Any) -> None:
    cq.configure(db, "sold")
    cq.configure(db, "words")
    assert "outbox" not in here("status").out
    settings = OutboxSettings("CQ_OUTBOX_URL", None).to_bytes()
    db.transact(lambda tr: tr.set(OutboxKeys("sold").settings, settings))
    membership = Membership(db, queues=["sold"], every=600.0)
    membership.beat(MemberReport(facts={"backlogs": {"sold": [2000, True, time.time() - 90]}}))
    sold, words, _ = here("status", "--json").rows()
    shown = here("status").out
    membership.leave(1.0)

    assert (sold["outbox"]["rows"], sold["outbox"]["exact"]) == (2000, False)
    assert sold["outbox"]["oldest_seconds"] >= 90
    assert words["outbox"] is None
    assert "outbox rows" in shown
    assert "outbox lag" in shown
    assert "2,000+" in shown


def test_what_is_to_be_done_is_said_and_ends_with_1(here: Here) -> None:
    here("configure", "words", "--export", "counts")
    here("pause", "words")

    ended = here("doctor")

    assert (ended.status, ended.err) == (1, "")
    assert "TO DO  queue words: paused until `cq resume`: by hand. Its updates stay queued." in ended.out
    assert "TO DO  link words export: $CQ_REPORTING_URL is not set" in ended.out
    here("resume", "words")
    here("configure", "words", "--no-link", "export")
    assert "TO DO  workers: no worker is alive. Start a worker" in here("doctor").out
    assert here("worker", "--drain").status == 0
    assert here("doctor").status == 0


def test_with_json_each_check_is_a_line(here: Here) -> None:
    ended = here("doctor", "--store", "fdb:nothing.cluster", "--json")

    checks = {row["name"]: row for row in ended.rows()}
    assert ended.status == 1
    assert list(checks["cluster file"]) == ["name", "ok", "message"]
    assert checks["python"]["ok"]
    assert not checks["cluster file"]["ok"]


def test_commands_read_a_copy_and_say_how_old_it_is(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    here("add", "words", "a=1")
    here("worker", "--drain")
    (copied,) = here("copy", "copy.db", "--json").rows()
    assert copied == {"path": "copy.db", "bytes": Path("copy.db").stat().st_size}
    here("add", "words", "a=1")
    here("worker", "--drain")

    found = here("get", "words", "a", "--store", "embedded:copy.db")

    assert (found.status, found.out.split()) == (0, ["a", "1"])
    assert found.err.startswith("reading a copy of the store, ")
    assert here("copy", "copy.db").out == f"copy.db: {Path('copy.db').stat().st_size:,} bytes\n"
    assert here("get", "words", "a", "--store", "embedded:copy.db").out.split() == ["a", "2"]


def test_a_copy_replaces_no_store(here: Here) -> None:
    here("configure", "words", "--combiner", "sum")
    found = here("copy", "cq.db", "--store", "embedded:cq.db")
    assert (found.status, found.out, found.err.count("\n")) == (1, "", 1)
    assert here("copy", "-").status == 2
    assert not Path("-").exists()


def test_watching_goes_on_after_an_error_of_the_store(
    db: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cq.configure(db, "words")
    monkeypatch.setattr(status, "WATCH_SECONDS", 0.0)

    found = status._answered(FailedCalls(db, TIMED_OUT, left=1), None)

    assert [queue.name for queue in found.queues] == ["words"]
    assert "the store failed, again in 0 s: " in capsys.readouterr().err


def test_the_rows_of_a_queue_that_cannot_be_read_are_unknown(here: Here, db: Any) -> None:
    cq.configure(db, "words")
    cq.transact(db, lambda tr: tr.set(QueueKeys("words").flags, b"\xff"))

    shown = here("status").out
    with serving(db) as found:
        pages = found.page("/") + found.page("/queues/words")

    assert re.search(r"words +unreadable +- +- ", shown)
    assert "about 0" not in shown + pages
