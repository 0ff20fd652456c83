"""What operators see of workers: those that live, those that are dead, what they do, and what stands out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import cq
from cq import runtime
from cq.admin.queue_status import current_version, status
from cq.feeds.feed import Feed
from cq.keys import membership as module
from cq.keys.link import OUTBOX
from cq.observers.feeds import feed_spec
from cq.observers.links.registry import pause_link
from cq.observers.monitoring.findings import Finding, find_remarks, remarks
from cq.observers.monitoring.store_overview import Activity, Overview, WorkerStatus, overview
from cq.observers.scheduling.members import Member, MemberReport, TaskId
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Job, Task
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker.reports import WorkerReports
from cq.observers.worker.worker import Worker
from cq.passes.effects import PassResult
from cq.testing import drain
from cq.windows import Window
from tests.kit.clocks import START, Stopped, set_clock
from tests.kit.queues import add
from tests.kit.workers import running, told_app
from tests.observers.outbox import outboxhelpers

SECONDS = 60.0


def seen_when(db: Any, name: str, met: Callable[[Overview], bool]) -> Overview:
    """What is seen, once that is so."""
    deadline = time.monotonic() + SECONDS
    while not met(seen := overview(db, name)):
        assert time.monotonic() < deadline, seen
        current_version(db)
    return seen


def of(seen: Overview, membership: Membership) -> WorkerStatus:
    (found,) = (worker for worker in seen.workers if worker.id == membership.id.hex())
    return found


@pytest.fixture
def row(db: Any, name: str) -> Any:
    """The row of a worker for this queue, which is written by hand."""
    membership = Membership(db, queues=[name], every=600.0)
    yield membership
    membership.leave(1.0)


def test_a_worker_that_lives_says_what_it_does(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name, buckets=4)
    with running(Worker(db, app, [name], beat=0.1)):
        add(db, name, {"a": 1, "b": 1})
        told.wait_for(a=1, b=1)
        seen = seen_when(db, name, lambda seen: seen.activity[name].updates == 2)
        (worker,) = (each for each in seen.workers if each.queues == [name])
        assert (worker.alive, worker.buckets, worker.roles) == (
            True,
            4,
            ["combine", "deliver", "link", "outbox", "publish"],
        )
        assert worker.passes == seen.activity[name].passes > 0
        assert (worker.updates, worker.conflicts) == (2, seen.activity[name].conflicts)
        assert worker.tasks == {"combine": 4, "trim": 1}
        assert (worker.error, worker.error_at) == ("", None)
        assert seen.activity[name].workers == 1
        assert not any(name in line for line in remarks(seen))
    assert all(each.id != worker.id for each in overview(db, name).workers)


def test_a_worker_that_beats_no_more_is_dead(db: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
    cq.configure(db, name)
    dead = Membership(db, queues=[name], every=1e-6)
    facts = {"queues": {name: [7, 7, 0, 3.5, 3.5]}, "totals": {"passes": 7}}
    dead.beat(MemberReport(facts=facts))
    seen = seen_when(db, name, lambda seen: not of(seen, dead).alive)
    assert of(seen, dead).beat_seconds > 0
    assert seen.activity[name].workers == 0
    assert any(f"worker {dead.id.hex()} is dead: its latest beat is" in line for line in remarks(seen))
    assert of(seen, dead).passes_per_second == 0.0, "rates are those of its last beat"
    dead.leave(1.0)


def test_a_queue_that_no_worker_is_for_is_named(db: Any, name: str, row: Membership) -> None:
    other = f"{name}-2"
    cq.configure(db, other)
    row.beat(MemberReport())
    seen = overview(db, other)
    assert (
        f"queue {other!r}: no worker combines it: the live workers are for other queues, or have other roles"
        in (remarks(seen))
    )


def test_a_queue_whose_feed_was_deleted_is_not_said_to_lack_code_only(db: Any, name: str) -> None:
    Feed[Any](name).configure(db)
    cq.configure(db, name, observers=[feed_spec(name)])
    Feed[Any](name).delete(db)
    with running(Worker(db, queues=[name], beat=0.1)):
        seen = seen_when(db, name, lambda seen: any(name in each.left_alone for each in seen.workers))

    (left,) = (each for each in find_remarks(seen) if each.finding is Finding.CODE_MISSING)
    assert left.text == "no worker combines it: the live workers lack something for it"
    assert left.todo.startswith("Their logs say what.")


def test_refused_updates_and_an_overdue_window_are_said_once(db: Any, name: str) -> None:
    cq.configure(db, name, window=(60, 1))
    window = Window(name)
    with set_clock() as clock:
        cq.transact(db, lambda tr: window.add(tr, {"a": 1, "b": 1}, at=clock.now - 100))
        cq.transact(db, lambda tr: window.add(tr, {"a": 1}, at=clock.now + 100))
        cq.transact(db, lambda tr: window.add(tr, {"a": 1}))
        drain(db, name)
        clock.now += 131
        said = remarks(overview(db, name))
        assert f"queue {name!r}: it has refused 2 updates as too late, 1 as too early" in said
        assert f"queue {name!r}: updates due to expire from its window have waited for 70.0 s" in said
        assert sum("due to expire" in line for line in said) == 1
        cq.configure(db, name, window=False, rollup="1m:2m")
        assert f"queue {name!r}: it has refused 2 updates as too late, 1 as too early" in remarks(
            overview(db, name)
        )


def test_what_workers_are_stuck_in_and_their_latest_error_are_shown(
    db: Any, name: str, row: Membership
) -> None:
    cq.configure(db, name)
    facts = {
        "tasks": {"combine": 3, "trim": 1},
        "buckets": 3,
        "error": "bucket 0: RuntimeError: no",
        "error_at": 1_700_000_000,
    }
    row.beat(MemberReport(stuck=frozenset({f"combine/{name}/0"}), facts=facts))
    seen = overview(db, name)
    worker = of(seen, row)
    assert (worker.buckets, worker.tasks, worker.error_at) == (3, {"combine": 3, "trim": 1}, 1_700_000_000)
    said = remarks(seen)
    assert f"worker {row.id.hex()} is stuck in: combine/{name}/0" in said
    assert f"worker {row.id.hex()} had the latest error: bucket 0: RuntimeError: no" in said


def test_numbers_are_summed_over_the_workers_that_live(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.0)
    cq.configure(db, name)
    rows = [Membership(db, queues=[name], every=every) for every in (600.0, 600.0, 1e-6)]
    for member in rows:
        decisions = {name: [30.0, 10.0, 2.0, 8_000.0], "broken": [1.0]}
        member.beat(MemberReport(facts={"queues": {name: [10, 20, 3, 1.5, 2.5]}, "decisions": decisions}))
    seen = seen_when(db, name, lambda seen: not of(seen, rows[2]).alive)
    activity = seen.activity[name]
    assert (activity.workers, activity.passes, activity.updates, activity.conflicts) == (2, 20, 40, 6)
    assert (activity.passes_per_second, activity.updates_per_second) == (3.0, 5.0)
    figures = (activity.decisions_per_second, activity.refused_share, activity.answer_seconds)
    assert figures == (60.0, 0.3333, 0.004)
    assert of(seen, rows[0]).passes_per_second == 1.5
    for member in rows:
        member.leave(1.0)


@pytest.fixture
def clock() -> Iterator[Stopped]:
    """Time passes when the test says so."""
    with runtime.using(stopped := Stopped()):
        yield stopped


def timed_facts() -> tuple[WorkerCounts, Callable[[], dict[str, Any]]]:
    """The counts of a worker, and what it reports."""
    totals = WorkerCounts()
    me = Member(b"", b"", 1.0, frozenset(), frozenset(), None, "here", 1, MemberReport())
    reports = WorkerReports(me, totals)
    return totals, lambda: reports.facts([])


def test_rates_are_those_since_the_beat_before(clock: Stopped) -> None:
    totals, facts = timed_facts()
    for _ in range(8):
        totals.count("words", PassResult(rows=2, updates=3, conflicts=1))
    totals.count("texts", PassResult(conflicts=4))
    clock.now += 4
    found = facts()
    assert found["queues"] == {"words": [8, 24, 8, 2.0, 6.0], "texts": [1, 0, 4, 0.25, 0.0]}
    assert found["conflicts_per_second"] == 3.0, "of all queues"
    clock.now += 0.1  # too short to say anything
    assert facts() == found
    clock.now += 4
    assert facts()["queues"]["words"] == [8, 24, 8, 0.0, 0.0]


def test_facts_that_no_worker_writes_are_shown_safely(db: Any, name: str, row: Membership) -> None:
    cq.configure(db, name)
    facts = {
        "error": "\x1b[31m" + "x" * 5_000,
        "error_at": "today",
        "tasks": {f"\n{number}": -1 for number in range(100)},
        "conflicts_per_second": [1],
    }
    row.beat(MemberReport(facts=facts))
    worker = of(overview(db, name), row)
    assert worker.error == "\x1b[31m" + "x" * 995  # programs get it as it is; `printable` is for terminals
    assert (worker.error_at, worker.conflicts_per_second) == (None, 0.0)
    assert len(worker.tasks) == 50
    assert all(kind.isprintable() and number == 0 for kind, number in worker.tasks.items())


class Idle(Task):
    """A task that does nothing."""

    def __str__(self) -> str:
        return "nothing"

    def run(self) -> float:
        return DONE


def test_a_worker_reports_its_latest_error_with_its_time(db: Any, row: Membership) -> None:
    reports = WorkerReports(row.me, WorkerCounts(), 1)
    job = Job(Idle(), TaskId("trim", "words", 0))
    assert reports.facts([job])["error_at"] is None
    with set_clock() as clock:
        for text in ("first", "latest" * 100):
            clock.now += 60
            reports.failed(job, ValueError(text), 1.0)
        row.beat(MemberReport(facts=reports.facts([job])))
        worker = of(overview(db), row)
    assert (worker.error[:26], worker.error_at) == ("nothing: ValueError: latest"[:26], START + 120)
    assert len(worker.error) == 300
    assert (worker.tasks, worker.buckets) == ({"trim": 1}, 0)


def test_of_many_queues_the_busiest_are_named(clock: Stopped) -> None:
    totals, facts = timed_facts()
    for number in range(300):
        totals.count(f"q{number}", PassResult())
    facts()
    totals.count("q7", PassResult())
    clock.now += 4
    named = facts()
    assert "q7" in named["queues"]
    assert len(named["queues"]) == 100


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"waiting_buckets": 4, "oldest_seconds": 60.0}, "`cq rebucket words --buckets 16`"),
        ({"waiting_buckets": 3, "oldest_seconds": 60.0}, ""),
        ({"waiting_buckets": 4, "oldest_seconds": 1.0}, ""),
        ({"waiting_buckets": 4, "oldest_seconds": 60.0, "former_buckets": 2}, "being drained"),
        ({"buckets": 64, "rows": 5_000, "bytes": 300_000}, "`cq rebucket words --buckets 16`"),
        ({"buckets": 8, "rows": 5_000, "bytes": 300_000}, "`cq rebucket words --buckets 4`"),
        ({"buckets": 4, "rows": 5_000, "bytes": 300_000}, ""),
        ({"buckets": 64, "rows": 5_000, "bytes": 3_000_000}, ""),
        ({"buckets": 64, "rows": 50, "bytes": 3_000}, ""),
    ],
)
def test_a_number_of_buckets_is_recommended_from_what_waits(
    db: Any, name: str, changes: dict[str, Any], said: str
) -> None:
    cq.configure(db, name)
    (queue,) = status(db, name)
    changes = {"buckets": 4, **changes}
    buckets = changes.pop("buckets")
    queue = replace(queue, name="words", settings={**queue.settings, "buckets": buckets}, **changes)
    alive = WorkerStatus("id", "here", 1, "0.1", ["combine"], None, True, 0.1, None, 4, 0, 0.0, [], [], "")
    seen = Overview([queue], {"words": Activity(workers=1, concurrency=12)}, [], [alive])
    found = remarks(seen)
    assert [said in line for line in found] == ([True] if said else [])


@pytest.mark.parametrize("workers", [0, 1])
def test_single_buckets_are_named_only_while_a_worker_combines_the_queue(
    db: Any, name: str, workers: int
) -> None:
    cq.configure(db, name)
    (queue,) = status(db, name)
    queue = replace(queue, name="words", outstanding={0: 60.0}, oldest_seconds=60.0)
    alive = WorkerStatus(
        "id", "here", 1, "0.1", ["combine"], None, bool(workers), 0.1, None, 4, 0, 0.0, [], [], ""
    )

    found = remarks(Overview([queue], {"words": Activity(workers, workers)}, [], [alive]))

    assert any("bucket 0 has waited" in line for line in found) == bool(workers)
    assert any("no worker is alive" in line for line in found) == (not workers)


def test_the_rows_of_an_outbox_are_those_that_its_worker_read_latest(
    db: Any, name: str, row: Membership, sqlite_url: str
) -> None:
    outboxhelpers.configure(db, name)
    outboxhelpers.insert(name, {"a": 1, "b": 2})
    task = outboxhelpers.outbox_task(db, name)
    job = Job(task, TaskId("outbox", name, 0))
    reports = WorkerReports(row.me, WorkerCounts(), 1)
    seen = []
    for _ in range(3):  # not read yet, then with rows, then without
        row.beat(MemberReport(facts=reports.facts([job])))
        seen.append(overview(db, name).outboxes[name])
        task.run()
    outboxhelpers.sql("DROP TABLE cq_outbox")
    task.run()
    row.beat(MemberReport(facts=reports.facts([job])))
    failing = overview(db, name).outboxes[name]
    task.end()

    unread, full, empty = seen
    assert (unread.rows, unread.bytes, unread.exact) == (None, None, False)
    assert full.aside is None, "rows that the queue refuses are in the table only"
    assert (full.rows, full.exact, full.oldest_seconds is not None) == (2, True, True)
    assert (empty.rows, empty.exact, empty.oldest_seconds) == (0, True, None)
    assert (failing.state, failing.error != "") == ("failing", True)
    assert (failing.rows, failing.exact) == (None, False), "there may be rows now"


def test_an_outbox_needs_a_worker_as_nobody_else_sees_its_rows(db: Any, name: str, sqlite_url: str) -> None:
    outboxhelpers.configure(db, name)
    assert remarks(overview(db, name)) == ["no worker is alive"]

    Membership(db, every=600.0, roles=["combine"]).beat(MemberReport())
    lack = "has no worker: the live workers are for other queues, or have other roles"
    assert remarks(overview(db, name)) == [f"the outbox of queue {name!r} {lack}"]

    Membership(db, every=600.0).beat(MemberReport())
    assert remarks(overview(db, name)) == []


def test_a_paused_outbox_needs_no_worker(db: Any, name: str, sqlite_url: str) -> None:
    outboxhelpers.configure(db, name)
    pause_link(db, name, OUTBOX, paused=True)
    assert "no worker is alive, and none is needed now" in remarks(overview(db, name))


def test_many_rows_of_an_outbox_are_shown_as_more_and_damaged_facts_are_left_out(
    db: Any, name: str, row: Membership, sqlite_url: str
) -> None:
    outboxhelpers.configure(db, name)
    with set_clock() as clock:
        row.beat(MemberReport(facts={"backlogs": {name: [2000, True, clock.now - 90]}}))
        many = overview(db, name).outboxes[name]
        row.beat(MemberReport(facts={"backlogs": {name: ["many", True, None]}}))
        damaged = overview(db, name).outboxes[name]

    assert (many.rows, many.exact, many.oldest_seconds) == (2000, False, 90.0)
    assert (damaged.rows, damaged.exact, damaged.oldest_seconds) == (None, False, None)
