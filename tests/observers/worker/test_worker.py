"""The worker: it wakes when there is work, leaves alone what it must, and stops cleanly."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import cq
from cq import admin, links, runtime
from cq.admin.backfill import is_settled
from cq.config.flags import Flags, read_flags
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observers.links.task import LinkTask
from cq.observers.monitoring.store_overview import overview
from cq.observers.scheduling import notifications
from cq.observers.scheduling.fair_queue import Lane
from cq.observers.scheduling.members import MemberReport
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.runner import DONE, Runner
from cq.observers.tasks.combine import CombineTask
from cq.observers.tasks.timed import FinishTask, LimitTask
from cq.observers.telemetry.bus import Event, subscribe
from cq.observers.telemetry.totals import WorkerCounts
from cq.observers.worker import reports
from cq.observers.worker import worker as worker_module
from cq.observers.worker.worker import Worker
from cq.observers.worker.workload import Workload
from cq.passes.plan import LOCAL_LIMITS, Limits
from cq.store.api import is_local
from cq.store.transact import transact
from tests.kit.faults import TIMED_OUT, FailedCalls, error_class
from tests.kit.queues import add, aside, code_of, event_of, nothing_queued, values
from tests.kit.workers import SECONDS, Told, running, told_app
from tests.links.linkhelpers import own_link


def test_a_worker_for_a_queue_combines_its_levels(db: Any, name: str) -> None:
    cq.configure(db, name, window=60, rollup="1m:forever")
    told, app = told_app(f"{name}.1h")
    total = QueueKeys(f"{name}.window").value(codec.encode("a"))
    with running(Worker(db, app, queues=[name])):
        counted = event_of(transact(db, lambda tr: tr.watch(total)))
        add(db, name, {"a": 1})
        assert counted.wait(SECONDS)
        cq.configure(db, name, rollup="1m:forever,1h:forever")  # while it runs
        app.configure(db, f"{name}.1h")
        add(db, name, {"a": 1})
        with told.changed:
            assert told.changed.wait_for(lambda: list(told.values.values()) == [1], SECONDS)


@pytest.mark.parametrize("buckets", [1, 2])
def test_one_pass_of_cqs_own_code_runs_at_a_time_where_the_store_is_local(
    db: Any, name: str, buckets: int
) -> None:
    """Code of an application must not hold up the others. Passes of which there is but one at a time may be larger."""
    cq.configure(db, name)
    _, app = told_app(foreign := f"{name}-foreign")
    app.configure(db, foreign, buckets=buckets)
    work = Workload(db, app, [name, foreign], {"combine"}, WorkerCounts(), None)
    _, watch = work.load()
    watch.cancel()
    for job in work.jobs:
        if isinstance(job.task, CombineTask):
            is_alone = is_local(db) and job.task_id.queue == name
            assert job.task.max_parallel == (1 if is_alone else None)
            is_large = is_alone or (is_local(db) and buckets == 1)
            assert job.task.passes.limits == (LOCAL_LIMITS if is_large else Limits())


def test_a_task_that_finds_work_is_repeated_without_a_watch(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass causes the next one by an add: the worker searches for notifications only before and after them."""
    rounds = 20
    passes: list[Event] = []
    searches: list[int] = []
    app, ended = cq.App(), threading.Event()

    def add_next(tr: Any, changes: list[cq.Change]) -> None:
        if (changes[0].new or 0) < rounds:
            cq.CombineQueue(name).add(tr, {"a": 1})

    app.queue(name, observers=[cq.Observer("next", 1, add_next)])
    app.configure(db, name, buckets=1)
    find = notifications.find_or_watch

    def noted(db: Any, jobs: Any, watches: int) -> Any:
        found = find(db, jobs, watches)
        if any(isinstance(job.task, CombineTask) for job in jobs):
            searches.append(len(passes))
            if len(passes) >= rounds:
                ended.set()
        return found

    def note(event: Event) -> None:
        if event.name == "pass_done" and event.fields["queue"] == name:
            passes.append(event)

    monkeypatch.setattr(worker_module, "find_or_watch", noted)
    unsubscribe = subscribe(note)
    with running(Worker(db, app, queues=[name])):
        add(db, name, {"a": 1})
        assert ended.wait(SECONDS)
    unsubscribe()

    assert (
        sum(0 < each < rounds for each in searches) <= 1
    )  # the check of all notifications, every 30 seconds
    assert len(passes) == rounds


def test_a_worker_of_all_queues_sees_one_that_is_configured_later(db: Any, name: str) -> None:
    told, app = told_app(name)
    with running(Worker(db, app)):
        app.configure(db, name)
        add(db, name, {"a": 1})
        told.wait_for(a=1)


def test_a_paused_queue_is_left_alone_until_it_is_resumed(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name)
    with running(Worker(db, app, [name])) as worker:
        add(db, name, {"a": 1})
        told.wait_for(a=1)
        admin.pause(db, name)
        while not worker._work.problem(name):
            time.sleep(0.001)  # until the worker has heard of it: a pass may come before
        add(db, name, {"a": 1})
        with pytest.raises(cq.errors.ConfigurationError, match="paused"):
            Worker(db, app, [name]).drain()
        admin.resume(db, name)
        told.wait_for(a=2)


def test_a_queue_whose_code_is_missing_is_left_alone_and_named(
    db: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    told, app = told_app(name)
    other = f"{name}-2"
    app.configure(db, name)
    cq.configure(db, other, observers=[cq.Observer("missing", 1, told)])
    add(db, other, {"a": 1})
    with caplog.at_level(logging.WARNING, "cq.worker"), running(Worker(db, app, [name, other])):
        add(db, name, {"a": 1})
        told.wait_for(a=1)

    assert any(f"queue {other!r} asks for the observer missing@1" in line for line in caplog.messages)
    assert not nothing_queued(db, other)
    with pytest.raises(cq.errors.ConfigurationError, match="missing@1"):
        Worker(db, app, [other]).drain()


def test_a_worker_of_an_unknown_queue_is_refused(db: Any, name: str) -> None:
    with pytest.raises(cq.errors.QueueNotConfigured):
        Worker(db, queues=[name]).run()
    with pytest.raises(cq.errors.QueueNotConfigured):
        Worker(db, queues=[name]).drain()


def test_a_drain_that_takes_long_reports_its_progress(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(worker_module, "_STOP_SECONDS", 0.01)
    app, reported = cq.App(), threading.Event()

    def wait(tr: Any, changes: list[cq.Change]) -> None:
        assert reported.wait(SECONDS)

    app.queue(name, observers=[wait])
    app.configure(db, name)
    add(db, name, {"a": 1})

    def note(event: Event) -> None:
        if event.name == "drain_goes_on":
            reported.set()

    unsubscribe = subscribe(note)
    Worker(db, app, [name]).drain()
    unsubscribe()
    assert nothing_queued(db, name)
    assert values(db, name) == {"a": 1}, "the observer was not kept waiting for the report"


def test_a_drain_follows_what_observers_add_to_other_queues(db: Any, name: str) -> None:
    names = [f"{name}-{level}" for level in range(4)]
    app = cq.App()
    for here, following in pairwise(names):
        queue = cq.CombineQueue(following)

        def pass_on(tr: Any, changes: list[cq.Change], queue: cq.CombineQueue = queue) -> None:
            queue.add(tr, {change.key: (change.new or 0) - (change.old or 0) for change in changes})

        app.queue(here, observers=[pass_on])
    for each in names:
        app.configure(db, each, buckets=2)
    for number in range(30):
        add(db, names[0], {f"k{number % 7}": number})

    Worker(db, app, names).drain()

    first = dict(cq.CombineQueue(names[0]).scan(db))
    assert sum(first.values()) == sum(range(30))
    assert all(dict(cq.CombineQueue(each).scan(db)) == first for each in names)


def test_a_deployment_that_fails_for_every_key_pauses_the_queue(db: Any, name: str) -> None:
    def broken(tr: Any, changes: list[cq.Change]) -> None:
        raise RuntimeError("no such table")

    app = cq.App()
    app.queue(name, observers=[broken])
    app.configure(db, name, buckets=2)
    add(db, name, {f"k{number}": 1 for number in range(500)})

    events: list[Event] = []
    unsubscribe = subscribe(events.append)
    with pytest.raises(cq.errors.ConfigurationError, match=r"paused .*no such table"):
        Worker(db, app, [name]).drain()
    unsubscribe()

    assert "no such table" in next(each.fields["reason"] for each in events if each.name == "queue_broken")
    assert 10 <= len(aside(db, name)) <= 20
    set_aside = sum(sum(each.updates) for each in aside(db, name))
    app.queue(name, observers=[cq.Observer("broken", 1, lambda tr, changes: None)])
    admin.resume(db, name)
    Worker(db, app, [name]).drain()
    assert sum(value for _, value in cq.CombineQueue(name).scan(db)) == 500 - set_aside


def test_a_bucket_that_fails_is_tried_again_and_holds_nobody_up(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name, buckets=8)
    failing = FailedCalls(db, TIMED_OUT, what="clear_range")
    with running(Worker(failing, app, [name], concurrency=2)):
        add(db, name, {"a": 1})
        told.wait_for(a=1)
        failing.left = 3
        add(db, name, {f"k{number}": 1 for number in range(30)})
        told.wait_for(**{f"k{number}": 1 for number in range(30)})

    assert failing.left == 0


def test_a_drain_fails_if_the_store_fails_again_and_again_for_an_export(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.observers.worker.worker.delay_after", lambda failures: 0.001)
    app = own_link(db, name, lambda batch: None)
    transact(db, lambda tr: links.add(tr, name, {"a": 1}))

    def fail(_: LinkTask) -> float:
        raise error_class(db)(1510)

    with monkeypatch.context() as context:
        context.setattr(LinkTask, "run", fail)
        with pytest.raises(error_class(db), match="1510"):
            Worker(db, app, [name]).drain()
    Worker(db, app, [name]).drain()


def test_a_drain_combines_other_queues_though_one_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.observers.worker.worker.delay_after", lambda failures: 0.001)
    events = list[Event]()
    db: Any = cq.open(f"embedded:{tmp_path / 'store.db'}")
    for each in ("damaged", "sound"):
        cq.configure(db, each, buckets=1)
        add(db, each, {"a": 1})
    copied_from_elsewhere(db, "damaged")

    unsubscribe = subscribe(events.append)
    Worker(db).drain()
    unsubscribe()

    assert dict(cq.CombineQueue("sound").scan(db)) == {"a": 1}
    (left,) = [event for event in events if event.name == "work_left"]
    assert str(left).startswith("queue 'damaged': left with work to do: a row is stamped later")
    with pytest.raises(cq.errors.CorruptData, match="stamped later"):
        Worker(db, queues=["damaged"]).drain()
    db.close()


def copied_from_elsewhere(db: Any, name: str) -> None:
    """Give the only queued row of a queue a version that the store has not reached."""
    queue = QueueKeys(name)

    def move(tr: Any) -> None:
        (row,) = tr.get_range(*queue.all_rows()).to_list()
        stamp = queue.versionstamp_of_row(row.key)
        tr.clear(row.key)
        tr.set(row.key.replace(stamp, b"\x7f" + stamp[1:]), row.value)

    transact(db, move)


class TestApp:
    """What an application declares by decorators."""

    def test_observers_are_told_in_the_order_in_which_they_are_declared(self, db: Any, name: str) -> None:
        app, order = cq.App(), list[str]()
        app.queue(name, observers=[cq.Observer("first", 1, lambda tr, changes: order.append("first"))])

        @app.observer(name, version=3)
        def second(tr: Any, changes: list[cq.Change]) -> None:
            order.append("second")

        app.configure(db, name)
        add(db, name, {"a": 1})
        Worker(db, app, [name]).drain()
        assert order == ["first", "second"]
        assert [str(each) for each in code_of(db, name, app).config.observers] == ["first@1", "second@3"]

    def test_a_target_of_the_application_gets_what_is_added_to_the_link(self, db: Any, name: str) -> None:
        told, seen = threading.Event(), list[tuple[Any, Any]]()

        def send(batch: links.Changes) -> None:
            seen.extend((entry.key, entry.value) for entry in batch)
            told.set()

        app = own_link(db, name, send)
        with running(Worker(db, app, [name])):
            transact(db, lambda tr: links.add(tr, name, {"a": {"total": 12}}))
            assert told.wait(SECONDS)
        transact(db, lambda tr: links.add(tr, name, {"b": None}))
        Worker(db, app, [name]).drain()
        assert seen == [("a", {"total": 12}), ("b", None)]


class TestSharing:
    """Several workers on one store."""

    def test_each_has_tasks_and_one_that_leaves_hands_them_over(self, db: Any, name: str) -> None:
        told, app = told_app(name)
        app.configure(db, name, buckets=16)
        first, second = Worker(db, app, [name]), Worker(db, app, [name])
        with running(first):
            with running(second):
                number = 0
                while not (first.totals.passes and second.totals.passes):
                    number += 1
                    add(db, name, {f"k{number}": 1})
                    told.wait_for(**{f"k{number}": 1})
            before = second.totals.passes
            for _ in range(20):
                number += 1
                add(db, name, {f"k{number}": 1})
                told.wait_for(**{f"k{number}": 1})
        assert second.totals.passes == before
        assert first.totals.reported + second.totals.reported == number

    def test_one_that_says_nothing_any_more_is_replaced(self, db: Any, name: str) -> None:
        """A worker that was killed has left its row."""
        told, app = told_app(name)
        app.configure(db, name, buckets=4)
        Membership(db, every=0.05).beat(MemberReport())
        with running(Worker(db, app, [name], beat=0.05)):
            for number in range(8):
                add(db, name, {f"k{number}": 1})
                told.wait_for(**{f"k{number}": 1})

    def test_what_its_owner_does_not_do_is_done_by_another_one(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It beats, and says that all is well: here a row that somebody keeps writing."""
        monkeypatch.setattr(worker_module, "SAFETY_SECONDS", 0.1)
        told, app = told_app(name)
        app.configure(db, name, buckets=8)
        idler, over = Membership(db, every=1.0), threading.Event()

        def beat() -> None:
            while not over.wait(0.02):
                idler.beat(MemberReport())

        idler.beat(MemberReport())  # before the worker looks who is there
        beating = threading.Thread(target=beat)
        beating.start()
        try:
            with running(Worker(db, app, [name], beat=0.1)) as worker:
                for number in range(20):
                    add(db, name, {f"k{number}": 1})
                told.wait_for(**{f"k{number}": 1 for number in range(20)})
                assert sum(job.owned for job in worker._work.jobs) < len(worker._work.jobs)
        finally:
            over.set()
            beating.join()
            idler.leave(1.0)

    def test_what_a_worker_is_stuck_in_is_taken_over(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its loop goes on, and so do its other tasks; the step that hangs is thrown away in the end."""
        monkeypatch.setattr(worker_module, "STUCK_SECONDS", 0.1)
        release, hung = threading.Event(), threading.Event()
        told = Told()

        def hangs(tr: Any, changes: list[cq.Change]) -> None:
            if threading.current_thread().name.startswith("cq-worker") and not hung.is_set():
                hung.set()
                release.wait(SECONDS)
            told(tr, changes)

        app = cq.App()
        app.queue(name, observers=[cq.Observer("told", 1, hangs)])
        app.configure(db, name, buckets=1)
        limits = Limits(stale_seconds=0.1)
        with (
            running(Worker(db, app, [name], beat=0.05, limits=limits)),
            running(Worker(db, app, [name], beat=0.05, limits=limits)),
        ):
            add(db, name, {"a": 1})
            assert hung.wait(SECONDS)
            told.wait_for(a=1)
            add(db, name, {"a": 1})
            told.wait_for(a=2)
            release.set()
            told.wait_for(a=1)  # by the step that has hung, and is thrown away
            add(db, name, {"a": 1})
            told.wait_for(a=3)
        assert transact(db, lambda tr: cq.CombineQueue(name).get(tr, "a")) == 3


class TestAbility:
    """A task goes to a worker that can do it."""

    def test_a_target_of_the_application_is_called_though_others_have_none(self, db: Any, name: str) -> None:
        seen, changed = set[str](), threading.Condition()

        def send(batch: links.Changes) -> None:
            with changed:
                seen.update(entry.key for entry in batch)
                changed.notify_all()

        app = own_link(db, name, send)
        wanted = {f"k{number}" for number in range(50)}
        with running(Worker(db, app)), running(Worker(db)):
            transact(db, lambda tr: links.add(tr, name, dict.fromkeys(wanted, 1)))
            with changed:
                assert changed.wait_for(lambda: seen == wanted, SECONDS)

    def test_what_fails_again_and_again_is_tried_by_another_one(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cq.observers.scheduling.takeover.MANY_FAILURES", 1)
        seen, changed = set[str](), threading.Condition()

        def fail(batch: links.Changes) -> None:
            raise ConnectionError("not from here")

        def send(batch: links.Changes) -> None:
            with changed:
                seen.update(entry.key for entry in batch)
                changed.notify_all()

        apps = [own_link(db, name, fail), own_link(db, name, send)]
        wanted = {f"k{number}" for number in range(50)}
        transact(db, lambda tr: links.add(tr, name, dict.fromkeys(wanted, 1)))
        with (
            running(Worker(db, apps[0], beat=0.05)),
            running(Worker(db, apps[1], beat=0.05)),
            changed,
        ):
            assert changed.wait_for(lambda: seen == wanted, SECONDS)

    def test_a_link_whose_columns_it_lacks_is_left_to_others(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CQ_REPORTING_URL", "sqlite://")
        cq.configure(db, name, links=[links.table("report", columns="not-declared@1")])
        worker = Worker(db, queues=[name])
        worker._work.load()[1].cancel()
        assert worker._report().lacking == {f"link/{name}/1"}
        worker._beat()
        (seen,) = overview(db, name).workers
        assert seen.left_alone == [f"link/{name}/export"]

    def test_a_worker_that_does_not_combine_drains_the_rest(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        add(db, name, {"a": 1})
        Worker(db, queues=[name], roles=["link"]).drain()
        assert not nothing_queued(db, name)


class TestChanges:
    """Configurations that change while a worker looks."""

    def test_an_error_while_queues_are_opened_leaves_no_jobs_behind(
        self, db: Any, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told, app = told_app(name)
        app.configure(db, name, buckets=2)
        worker = Worker(db, app, [name])
        with running(worker):
            add(db, name, {"a": 1})
            told.wait_for(a=1)
            opened, errors = worker._work._opened, [error_class(db)(TIMED_OUT)]

            def fails(*args: Any) -> Any:
                if errors:
                    raise errors.pop()
                return opened(*args)

            monkeypatch.setattr(worker._work, "_opened", fails)
            before = list(worker._work.jobs)
            admin.rebucket(db, name, 3)
            add(db, name, {"a": 1})
            told.wait_for(a=2)
            assert errors == []
            assert not any(job.owned for job in before)

    def test_a_named_queue_that_is_deleted_ends_no_worker(self, db: Any, name: str) -> None:
        told, app = told_app(name)
        other = f"{name}-2"
        app.configure(db, name)
        cq.configure(db, other)
        with running(Worker(db, app, [name, other])):
            add(db, name, {"a": 1})
            told.wait_for(a=1)
            admin.delete(db, other)
            add(db, name, {"a": 1})
            told.wait_for(a=2)
            cq.configure(db, other)
            add(db, other, {"a": 1})
            deadline = time.monotonic() + SECONDS
            while not nothing_queued(db, other):
                assert time.monotonic() < deadline
                threading.Event().wait(0.01)

    def test_a_watch_that_is_lost_is_made_again_with_the_next_beat(self, db: Any, name: str) -> None:
        told, app = told_app(name)
        cq.configure(db, f"{name}-2")
        worker = Worker(db, app, beat=0.1)
        with running(worker):
            while worker._changed.is_free:
                threading.Event().wait(0.01)
            worker._changed.cancel()
            app.configure(db, name)
            add(db, name, {"a": 1})
            told.wait_for(a=1)

    def test_a_task_that_was_left_and_taken_up_while_it_ran_runs_again(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.limit(db, name, max_bytes=10**9)
        worker = Worker(db, queues=[name])
        worker._work.load()[1].cancel()
        (job,) = [job for job in worker._work.jobs if isinstance(job.task, LimitTask)]
        job.acquire()
        worker._run(job)
        job.release()
        job.acquire()
        worker._after(job)
        assert worker._runner.is_busy(job)
        worker._runner.close(SECONDS)


def test_with_more_tasks_than_watches_the_others_are_looked_at(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "MAX_WATCHES", 3)
    monkeypatch.setattr(worker_module, "_SCAN_SECONDS", 0.02)
    told, app = told_app(name)
    app.configure(db, name, buckets=16)
    worker = Worker(db, app, [name])
    with running(worker):
        for number in range(40):
            add(db, name, {f"k{number}": 1})
            told.wait_for(**{f"k{number}": 1})
        held = sum(not job.watch.is_free for job in worker._work.jobs)
    assert held < 16  # several threads may find room at once


class TestFlags:
    """What operators say."""

    def test_a_pause_for_some_time_ends_by_itself(self, db: Any, name: str) -> None:
        told, app = told_app(name)
        app.configure(db, name)
        begun = time.monotonic()
        admin.pause(db, name, duration=0.5)
        with running(Worker(db, app, [name])):
            add(db, name, {"a": 1})
            told.wait_for(a=1)
        assert time.monotonic() - begun >= 0.5

    @pytest.mark.parametrize("seconds", [0, -1, float("nan")])
    def test_a_time_that_is_none_is_refused(self, db: Any, name: str, seconds: float) -> None:
        cq.configure(db, name)
        with pytest.raises(cq.errors.InvalidConfiguration, match="a positive duration in seconds"):
            admin.pause(db, name, duration=seconds)

    def test_a_pause_keeps_the_priority(self, db: Any, name: str) -> None:
        cq.configure(db, name)
        admin.prioritize(db, name, 40)
        admin.pause(db, name)
        admin.resume(db, name)
        assert transact(db, lambda tr: read_flags(tr, name)) == Flags(priority=40)
        for wrong in (0, 101, True, 1.5):
            with pytest.raises(cq.errors.InvalidConfiguration, match="a priority of 1 to 100"):
                admin.prioritize(db, name, wrong)  # type: ignore[arg-type]


def fail(task: str, error: BaseException) -> float:
    raise error


class StepClocks(runtime.Machine):
    """A machine on which time passes only while a step says so, and whose second thread never gets its turn.

    So all steps run in one order.
    """

    def __init__(self) -> None:
        self._elapsed = self._used = 0.0
        self._has_started = False

    def pass_by(self, seconds: float, used: float) -> None:
        """Let time pass, `used` of it on a processor."""
        self._elapsed += seconds
        self._used += used

    def monotonic(self) -> float:
        return self._elapsed

    def thread_seconds(self) -> float:
        return self._used

    def start_thread(self, target: Callable[[], object], name: str) -> None:
        if not self._has_started:
            self._has_started = True
            super().start_thread(target, name)


class TestRunner:
    """Tasks: none twice at once, each again as it asks."""

    def test_a_task_is_never_run_twice_at_once(self) -> None:
        inside, most, lock = 0, 0, threading.Lock()
        left = 200

        def work(task: str) -> float:
            nonlocal inside, most, left
            with lock:
                inside += 1
                most = max(most, inside)
                left -= 1
            with lock:
                inside -= 1
                return 0.0 if left > 0 else DONE

        runner = Runner(work, fail, lambda task: None, threads=4)
        for _ in range(50):
            runner.submit("task")
        assert runner.wait_idle(SECONDS)
        runner.close()

        assert most == 1
        assert left <= 0

    def test_threads_that_could_not_be_started_are_started_later(self) -> None:
        class Limited(runtime.Machine):
            left = 1

            def start_thread(self, target: Callable[[], object], name: str) -> None:
                if self.left == 0:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
                super().start_thread(target, name)

        meeting = threading.Barrier(3)

        def work(task: str) -> float:
            meeting.wait(SECONDS)
            return DONE

        machine = Limited()
        runner = Runner(work, fail, lambda task: None, threads=3, lane=Lane)
        with runtime.using(machine):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                runner.submit("a")
            machine.left = 2
            for task in ("a", "b", "c"):
                runner.submit(task)
        assert runner.wait_idle(SECONDS)
        runner.close()

    def test_a_task_comes_again_after_the_time_it_asks_for(self) -> None:
        answers = [0.01, 0.0, DONE]
        after: list[str] = []
        runner = Runner(lambda task: answers.pop(0), fail, after.append, threads=1)
        runner.submit("task")

        assert runner.wait_idle(SECONDS)
        runner.close()
        assert answers == []
        assert after == ["task"]

    def test_a_task_that_raises_is_not_lost(self) -> None:
        failures: list[BaseException] = []
        errors = [SystemExit(), RuntimeError()]

        def work(task: str) -> float:
            if errors:
                raise errors.pop()
            return DONE

        def failed(task: str, error: BaseException) -> float:
            failures.append(error)
            return 0.0

        runner = Runner(work, failed, lambda task: None, threads=1)
        runner.submit("task")

        assert runner.wait_idle(SECONDS)
        runner.close()
        assert [type(error) for error in failures] == [RuntimeError, SystemExit]

    def test_a_task_that_is_discarded_while_it_runs_is_told_of_in_the_end(self) -> None:
        inside, release, after = threading.Event(), threading.Event(), list[str]()
        ended = threading.Event()

        def work(task: str) -> float:
            inside.set()
            assert release.wait(SECONDS)
            return 0.0

        def note(task: str) -> None:
            after.append(task)
            ended.set()

        runner = Runner(work, fail, note, threads=1)
        runner.submit("task")
        runner.submit("waits")
        assert inside.wait(SECONDS)
        assert not runner.discard("task")
        assert runner.discard("waits")
        release.set()
        assert ended.wait(SECONDS)
        assert runner.wait_idle(SECONDS)
        assert runner.close(SECONDS)
        assert after == ["task"]

    def test_those_that_hang_are_known_and_not_waited_for_longer_than_asked(self) -> None:
        inside, release = threading.Event(), threading.Event()

        def work(task: str) -> float:
            inside.set()
            release.wait(SECONDS)
            return DONE

        runner = Runner(work, fail, lambda task: None, threads=1)
        runner.submit("hangs")
        runner.submit("behind")
        assert inside.wait(SECONDS)
        assert runner.stuck(60.0) == []
        assert runner.stuck(0.0) == ["hangs", "behind"]
        assert not runner.close(0.0)
        release.set()
        assert runner.close(SECONDS)

    def test_what_waits_behind_other_systems_that_hang_is_stuck_with_them(self) -> None:
        """Another worker may have threads for it. Passes have some here."""
        hanging, release, passed = threading.Semaphore(0), threading.Event(), threading.Event()

        def work(task: str) -> float:
            if task == "pass":
                passed.set()
            else:
                hanging.release()
                release.wait(SECONDS)
            return DONE

        runner = Runner(
            work, fail, lambda task: None, threads=4, lane=lambda task: Lane(task, is_outside=task != "pass")
        )
        for task in ("send-a", "send-b", "send-c"):
            runner.submit(task)
        for _ in range(2):
            assert hanging.acquire(timeout=SECONDS)
        runner.submit("pass")
        assert passed.wait(SECONDS)
        assert set(runner.stuck(0.0)) - {"pass"} == {"send-a", "send-b", "send-c"}
        assert runner.stuck(60.0) == []
        release.set()
        assert runner.wait_idle(SECONDS)
        assert runner.close(SECONDS)

    def test_processor_time_counts_more_than_waiting(self) -> None:
        """A step that uses a processor holds up all threads, one that waits holds up its own."""
        steps: Counter[str] = Counter()
        submitted = threading.Event()

        def work(task: str) -> float:
            assert submitted.wait(SECONDS)
            clocks.pass_by(0.02, used=0.02 if task == "burns" else 0.0)
            steps[task] += 1
            return 0.0 if steps.total() < 500 else DONE

        with runtime.using(clocks := StepClocks()):
            runner = Runner(work, fail, lambda task: None, threads=2, lane=lambda task: Lane(task, 1.0))
            for task in ("burns", "waits", "waits too"):
                runner.submit(task)
            submitted.set()
            assert runner.wait_idle(SECONDS)
            runner.close()

        assert 80 <= steps["burns"] <= 120  # half as many as each of the others

    def test_a_closed_runner_takes_nothing_and_forgets_what_waits_for_its_time(self) -> None:
        runner = Runner(lambda task: 1000.0, fail, lambda task: None, threads=1)
        runner.submit("task")
        runner.close()
        runner.submit("other")

        assert not runner.is_busy("other")


def test_a_task_that_goes_by_time_and_is_done_runs_no_more(db: Any, name: str) -> None:
    """One that settles a change, say: it must not keep the worker busy for ever."""
    told, app = told_app(name)
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    Worker(db, queues=[name]).drain()
    app.configure(db, name)
    worker = Worker(db, app, [name])
    runs: list[object] = []
    run = worker._run
    worker._runner._work = lambda job: runs.append(job) or run(job)  # type: ignore[func-returns-value]
    with running(worker):
        told.wait_for(a=1)
        while not transact(db, lambda tr: is_settled(tr.snapshot, name)):
            threading.Event().wait(0.01)
        settling = [job for job in worker._work.others if isinstance(job.task, FinishTask)]
        assert len(settling) == 1
        deadline = time.monotonic() + SECONDS
        while worker._runner.is_busy(settling[0]):
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        before = runs.count(settling[0])
        threading.Event().wait(0.3)
        assert runs.count(settling[0]) == before
