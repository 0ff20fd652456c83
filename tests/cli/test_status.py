"""`cq status` with workers, `cq status --watch` and `cq health`, as operators run them."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import cq
from cq.keys.link import OutboxKeys
from cq.observers.links.outbox.state import OutboxSettings
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from tests.cli.conftest import Cli, Here
from tests.cli.workers import running, wait_for, wait_for_workers
from tests.kit.processes import SECONDS
from tests.kit.queues import add


def test_workers_and_what_they_do_are_shown(here: Here, cli: Cli, db: Any) -> None:
    cq.configure(db, "words")
    cq.configure(db, "other")
    worker = running(cli, "words")
    (member,) = wait_for_workers(db, 1)
    add(db, "words", {"a": 1})
    wait_for(db, "words", "a", 1)

    # Its first beat comes before it has taken up its tasks, the next one within seconds.
    deadline = time.monotonic() + SECONDS
    while not (last := here("status", "--json").rows()[-1])["workers"][0]["buckets"]:
        assert time.monotonic() < deadline
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
