"""The worker: it wakes when there is work, leaves alone what it must, and stops cleanly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

import cq
from cq.observers.runner import DONE, Runner
from cq.observers.worker import Worker
from cq.store.embedded import FDBError
from tests.helpers import add, aside, nothing_queued

SECONDS = 20.0


class Told:
    """An observer that lets a test wait until a value has been reported."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.changed = threading.Condition()

    def __call__(self, tr: Any, changes: list[cq.Change]) -> None:
        with self.changed:
            self.values.update((change.key, change.new) for change in changes)
            self.changed.notify_all()

    def wait_for(self, **values: Any) -> None:
        with self.changed:
            found = self.changed.wait_for(lambda: values.items() <= self.values.items(), SECONDS)
        assert found, f"expected {values}, got: {self.values}"


def told_app(name: str) -> tuple[Told, cq.App]:
    told, app = Told(), cq.App()
    app.queue(name, observers=[cq.Observer("told", 1, told)])
    return told, app


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """The worker in a thread, stopped in the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert failures == []


def test_a_worker_combines_what_waits_and_what_comes(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name, buckets=4)
    add(db, name, {"before": 1})
    with running(Worker(db, app, [name])):
        told.wait_for(before=1)
        for number in range(1, 20):
            add(db, name, {"a": 1, f"b{number}": 1})
            told.wait_for(a=number, **{f"b{number}": 1})

    assert nothing_queued(db, name)


def test_a_worker_of_all_queues_sees_one_that_is_configured_later(db: Any, name: str) -> None:
    told, app = told_app(name)
    with running(Worker(db, app)):
        app.configure(db, name)
        add(db, name, {"a": 1})
        told.wait_for(a=1)


def test_a_paused_queue_is_left_alone_until_it_is_resumed(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name)
    with running(Worker(db, app, [name])):
        add(db, name, {"a": 1})
        told.wait_for(a=1)
        cq.pause(db, name)
        add(db, name, {"a": 1})
        with pytest.raises(cq.ConfigurationError, match="paused"):
            Worker(db, app, [name]).drain()
        cq.resume(db, name)
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
    with pytest.raises(cq.ConfigurationError, match="missing@1"):
        Worker(db, app, [other]).drain()


def test_a_worker_of_an_unknown_queue_is_refused(db: Any, name: str) -> None:
    with pytest.raises(cq.QueueNotConfigured):
        Worker(db, queues=[name]).run()
    with pytest.raises(cq.QueueNotConfigured):
        Worker(db, queues=[name]).drain()


def test_a_drain_ends_when_nothing_is_queued(db: Any, name: str) -> None:
    cq.configure(db, name, buckets=5)
    for number in range(50):
        add(db, name, {f"k{number}": 1, "a": 1})
    worker = Worker(db, queues=[name])

    worker.drain()

    assert nothing_queued(db, name)
    assert dict(cq.CombineQueue(name).scan(db))["a"] == 50
    assert worker.totals.reported >= 51
    Worker(db, queues=[name]).drain()  # nothing to do


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

    with pytest.raises(cq.ConfigurationError, match=r"paused .*no such table"):
        Worker(db, app, [name]).drain()

    assert 10 <= len(aside(db, name)) <= 20
    set_aside = sum(sum(each.updates) for each in aside(db, name))
    app.queue(name, observers=[cq.Observer("broken", 1, lambda tr, changes: None)])
    cq.resume(db, name)
    Worker(db, app, [name]).drain()
    assert sum(value for _, value in cq.CombineQueue(name).scan(db)) == 500 - set_aside


def test_a_bucket_that_fails_is_tried_again_and_holds_nobody_up(db: Any, name: str) -> None:
    told, app = told_app(name)
    app.configure(db, name, buckets=8)
    failing = Failing(db)
    with running(Worker(failing, app, [name], concurrency=2)):
        add(db, name, {"a": 1})
        told.wait_for(a=1)
        failing.failures = 3
        add(db, name, {f"k{number}": 1 for number in range(30)})
        told.wait_for(**{f"k{number}": 1 for number in range(30)})

    assert failing.failures == 0


def test_a_drain_gives_up_when_the_store_fails_again_and_again(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cq.observers.worker._FIRST_DELAY", 0.001)
    cq.configure(db, name, buckets=1)
    add(db, name, {"a": 1})
    failing = Failing(db)
    failing.failures = 1000

    with pytest.raises(FDBError):
        Worker(failing, queues=[name]).drain()


class Failing:
    """A database of which some commits fail for good."""

    def __init__(self, db: Any) -> None:
        self.db, self.failures = db, 0

    options = property(lambda self: self.db.options)

    def create_transaction(self) -> Any:
        return FailingTransaction(self, self.db.create_transaction())


class FailingTransaction:
    def __init__(self, failing: Failing, tr: Any) -> None:
        self._failing, self._tr = failing, tr

    def __getattr__(self, what: str) -> Any:
        return getattr(self._tr, what)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if self._failing.failures:
            self._failing.failures -= 1
            raise FDBError(1031)
        self._tr.clear_range(begin, end)


def fail(task: str, error: BaseException) -> float:
    raise error


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

    def test_a_closed_runner_takes_nothing_and_forgets_what_waits_for_its_time(self) -> None:
        runner = Runner(lambda task: 1000.0, fail, lambda task: None, threads=1)
        runner.submit("task")
        runner.close()
        runner.submit("other")

        assert not runner.is_busy("other")
