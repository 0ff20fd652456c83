"""The one list of findings: doctor, status, health and the dashboard say the same about the same store."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin
from cq.cli.web.pages import verdict
from cq.cli.web.sampler import OVERVIEW, Reading, StoreSnapshot
from cq.failure import KeyFailure
from cq.feeds import Feed
from cq.keys import QueueKeys
from cq.keys.link import LinkKeys
from cq.observers.links.spec import table
from cq.observers.links.state import LinkStop, stop
from cq.observers.monitoring.findings import LATE_LINK_SECONDS, Finding, Level, find_remarks
from cq.observers.monitoring.store_overview import Overview, WorkerStatus, overview
from cq.observers.scheduling.members import ROLES, MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.worker.worker import Worker
from cq.queue.set_aside import set_aside
from tests.cli.conftest import Here
from tests.cli.conftest import cli as cli
from tests.cli.conftest import db as db
from tests.cli.conftest import here as here
from tests.kit.clocks import jumping
from tests.kit.queues import add


def worker(db: Any, *lacking: str) -> None:
    """A worker that lives, and lacks the code of these queues."""
    Membership(db, every=600.0).beat(MemberReport(lacking=frozenset(lacking)))


def no_worker_and_queued_updates(db: Any) -> None:
    cq.configure(db, "words")
    add(db, "words", {"a": 1})


def no_code(db: Any) -> None:
    cq.configure(db, "words")
    worker(db, "words")


def no_code_and_queued_updates(db: Any) -> None:
    no_code(db)
    add(db, "words", {"a": 1})


def a_stopped_link(db: Any) -> None:
    cq.configure(db, "words", links=[table("words")])
    worker(db)
    cq.transact(
        db,
        lambda tr: stop(
            tr, LinkKeys("words", "export"), LinkStop(0, "the table was restored"), is_reviewed=True
        ),
    )


def keys_set_aside(db: Any) -> None:
    cq.configure(db, "words")
    worker(db)
    cq.transact(db, lambda tr: set_aside(tr, QueueKeys("words"), b"\x02a\x00", KeyFailure("an error"), [1]))


CASES: dict[Callable[[Any], None], tuple[Finding, Level, str]] = {
    no_worker_and_queued_updates: (Finding.NO_WORKER, Level.PROBLEM, "workers"),
    no_code: (Finding.CODE_MISSING, Level.WARNING, "queue words"),
    no_code_and_queued_updates: (Finding.CODE_MISSING, Level.PROBLEM, "queue words"),
    a_stopped_link: (Finding.LINK_STOPPED, Level.PROBLEM, "link words export"),
    keys_set_aside: (Finding.ASIDE, Level.WARNING, "queue words"),
}


@pytest.mark.parametrize("cause", CASES)
def test_all_who_look_say_the_same(here: Here, db: Any, cause: Callable[[Any], None]) -> None:
    finding, level, checked = CASES[cause]
    cause(db)

    (remark,) = [each for each in find_remarks(overview(db)) if each.is_urgent]
    assert (remark.finding, remark.level) == (finding, level)

    assert str(remark) in here("status").out.splitlines()
    (shown,) = [
        each
        for each in here("status", "--json").rows()[-1]["findings"]
        if each["finding"] == finding.name.lower()
    ]
    assert (shown["level"], shown["text"], shown["command"]) == (level, remark.text, remark.command)

    doctor = here("doctor", "--json")
    wrong = [row for row in doctor.rows() if not row["ok"]]
    assert doctor.status == 1
    assert wrong[0]["name"] == checked
    assert wrong[0]["message"].startswith(remark.text)
    assert remark.command in wrong[0]["message"]

    health = here("health")
    is_problem = level is Level.PROBLEM
    assert health.status == (1 if is_problem else 0)
    if finding is not Finding.NO_WORKER:  # which it says with the time since the latest beat
        assert (str(remark) in health.out.splitlines()) == is_problem

    page = verdict(StoreSnapshot(0, {OVERVIEW: Reading(overview(db))}))
    assert [each for each in page.advice if each.level == level] == [remark]
    assert page.level == level


def test_a_store_without_a_worker_and_without_work_needs_nothing_yet(here: Here, db: Any) -> None:
    """Only monitoring reports it, whose task it is that a worker lives."""
    cq.configure(db, "words")

    doctor = here("doctor")

    assert doctor.status == 0
    assert "OK     workers: no worker is alive, and none is needed now\n" in doctor.out
    assert here("health").out == "no worker is alive: none has registered\n"


def test_a_change_of_the_combiner_that_waits_for_updates_set_aside_is_not_left_to_workers(db: Any) -> None:
    keys_set_aside(db)
    seen = overview(db)
    changing = [replace(each, former_combiner="sum@1") for each in seen.queues]

    found = find_remarks(replace(seen, queues=changing))

    (remark,) = [each for each in found if "must combine its former updates" in each.text]
    assert (remark.finding, remark.command) == (Finding.ASIDE, "cq aside list words")


@pytest.mark.parametrize("stuck", ["words", "words.1h"])
def test_a_conversion_that_fails_is_a_problem_and_not_left_to_workers(db: Any, stuck: str) -> None:
    cq.configure(db, "words")
    Membership(db, every=600.0).beat(MemberReport(stuck=frozenset([f"combine/{stuck}/8192"])))
    seen = overview(db)

    found = find_remarks(replace(seen, queues=[replace(each, converting=0) for each in seen.queues]))

    (remark,) = [each for each in found if "converted" in each.text]
    is_failing = stuck == "words"
    assert remark.finding is (Finding.CONVERSION if is_failing else Finding.PROGRESS)
    (of_worker,) = [each for each in found if "is stuck in" in each.text]
    assert "does not answer" in of_worker.instruction
    assert ("Repair `convert`" in remark.instruction) == (remark.level is Level.PROBLEM) == is_failing


def test_a_paused_queue_needs_no_worker(db: Any) -> None:
    no_worker_and_queued_updates(db)
    admin.pause(db, "words")

    assert {each.finding: each.level for each in find_remarks(overview(db))} == {
        Finding.NO_WORKER: Level.NOTE,
        Finding.PAUSED: Level.WARNING,
    }


def test_a_probe_of_a_host_leaves_out_what_a_restart_does_not_change(here: Here, db: Any) -> None:
    a_stopped_link(db)

    assert here("health", "--here").out == "healthy\n"
    assert here("health").out == "the link 'words export' is stopped: the table was restored\n"


def test_a_queue_that_live_workers_do_not_keep_up_with_is_late(here: Here, db: Any) -> None:
    cq.configure(db, "words")
    worker(db)
    add(db, "words", {"a": 1})
    with jumping() as machine:
        assert find_remarks(overview(db)) == []
        machine.passed = 61
        (remark,) = find_remarks(overview(db))
        doctor = here("doctor")

    assert (remark.finding, remark.level) == (Finding.LATE, Level.WARNING)
    assert re.fullmatch(r"queue 'words': its oldest update has waited for \d+\.\d s", str(remark))
    assert doctor.status == 1
    assert "TO DO  queue words: its oldest update has waited for " in doctor.out


def test_a_link_that_lags_without_an_error_is_late_as_the_alerts_say(here: Here, db: Any) -> None:
    cq.configure(db, "words", links=[table("words")])
    add(db, "words", {"a": 1})
    Worker(db, roles=["combine"]).drain()
    with jumping() as machine:
        worker(db)
        assert find_remarks(overview(db)) == []
        machine.passed = LATE_LINK_SECONDS + 1
        (remark,) = find_remarks(overview(db))
        doctor = here("doctor")
        shown = here("status").out.splitlines()

    assert (remark.finding, remark.level) == (Finding.LINK_LATE, Level.WARNING)
    assert re.fullmatch(r"the link 'words export' has a lag of \d+\.\d s", str(remark))
    assert "TO DO  link words export: has a lag of " in doctor.out
    assert shown[-1].endswith(f"{remark.instruction}")
    alerts = (Path(__file__).parents[3] / "docs" / "operate" / "alerts.yaml").read_text()
    assert re.findall(r"cq_link_lag_seconds\) > (\d+)", alerts) == [f"{LATE_LINK_SECONDS:.0f}"]


def test_messages_to_deliver_need_a_worker_that_delivers(here: Here, db: Any) -> None:
    Feed("chat").configure(db)
    assert [each.level for each in find_remarks(overview(db))] == [Level.NOTE]

    Feed("chat").append_now(db, "crew", "hello", to_group=True)
    (remark,) = find_remarks(overview(db))
    assert (remark.finding, remark.level) == (Finding.NO_WORKER, Level.PROBLEM)

    Membership(db, ["combine"], every=600.0).beat(MemberReport())
    (remark,) = find_remarks(overview(db))
    assert (remark.finding, remark.command) == (Finding.FEED, "cq worker chat --only deliver")
    assert f"TO DO  feed chat: {remark.text}" in here("doctor").out

    Worker(db).drain()
    assert find_remarks(overview(db)) == []


def test_a_failing_link_is_a_finding_of_its_queue_and_no_failure_while_it_is_paused(
    here: Here, db: Any
) -> None:
    cq.configure(db, "others")
    here("configure", "words", "--link", "hook=webhook:NO_URL")
    add(db, "words", {"a": 1})
    Worker(db).drain()
    worker(db)

    def found(queue: str) -> list[tuple[Level, str]]:
        page = verdict(StoreSnapshot(0, {OVERVIEW: Reading(overview(db))}), queue)
        return [(each.level, str(each)) for each in page.advice]

    (failing,) = found("words")
    assert failing[0] is Level.WARNING
    assert failing[1].startswith("the link 'words hook' is failing: LinkFailed: ")
    assert found("others") == []
    here("link", "pause", "words", "hook")
    assert found("words") == [(Level.NOTE, "the link 'words hook' is paused")]
    assert here("status", "words").out.splitlines()[1].split()[:2] == ["words", "active"]


def test_an_old_error_of_a_worker_is_a_note(db: Any) -> None:
    cq.configure(db, "words")
    facts = {"error": "KeyError: 'a'", "error_at": 1_000_000_000}
    Membership(db, every=600.0).beat(MemberReport(facts=facts))

    (remark,) = find_remarks(overview(db))

    assert (remark.finding, remark.level) == (Finding.WORKER, Level.NOTE)


def status_of(**changes: Any) -> WorkerStatus:
    plain = WorkerStatus("id", "here", 1, "0.1", list(ROLES), None, True, 1.0, None, 4, 0, 0.0, [], [], "")
    return replace(plain, **changes)


def seen_of(*workers: WorkerStatus) -> Overview:
    return Overview([], {}, [], list(workers))


DEAD = status_of(id="dead", alive=False, beat_seconds=99.0, app="shop.counts:app")


@pytest.mark.parametrize(
    ("other", "is_replaced"),
    [
        (status_of(app="shop.counts:app"), True),
        (status_of(), False),
        (status_of(app="shop.counts:app", alive=False, beat_seconds=100.0), False),
        (status_of(app="shop.counts:app", roles=["combine"]), False),
        (status_of(app="shop.counts:app", queues=["words"]), False),
        (None, False),
    ],
)
def test_others_do_the_work_of_a_dead_worker_only_if_there_are_some(
    other: WorkerStatus | None, is_replaced: bool
) -> None:
    found = find_remarks(seen_of(DEAD, *([other] if other else [])))
    (dead,) = [remark for remark in found if remark.name == "dead"]
    assert ("Other workers do its work" in dead.todo) == is_replaced
    assert ("No other worker does all of its work" in dead.todo) == (not is_replaced)
    assert dead.command == "cq worker --app shop.counts:app"
    assert [remark.command for remark in found if remark.finding is Finding.NO_WORKER] == (
        [] if other and other.alive else ["cq worker --app shop.counts:app"]
    )


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "cq worker"),
        ({"queues": ["words", "hits.1h"], "roles": ["link"]}, "cq worker words hits.1h --only link"),
        ({"queues": ["a; rm -r /"], "app": "x; rm -r /"}, "cq worker 'a; rm -r /'"),
        ({"app": "shop.counts:app --only"}, "cq worker"),
    ],
)
def test_the_command_for_a_dead_worker_is_the_one_that_started_it(
    changes: dict[str, Any], command: str
) -> None:
    found = find_remarks(seen_of(status_of(alive=False, **changes)))
    assert {remark.command for remark in found} == {command}
