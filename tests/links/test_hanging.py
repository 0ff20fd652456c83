"""Targets that hang, each for ever, delay no other link; a database that hangs is noticed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
import sqlalchemy as sa

import cq
from cq import admin, links
from cq.links import Changes, LinkFailed
from cq.observers.links import sender
from cq.observers.links.sql.dialects import postgresql
from cq.observers.links.target import Source
from cq.observers.scheduling import runner
from cq.observers.scheduling.runner import CAUGHT_UP, DONE
from cq.observers.worker.worker import CONCURRENCY, Worker
from tests.kit.postgres import PostgresServer
from tests.kit.processes import wait_until
from tests.kit.queues import add
from tests.kit.stores import db as db
from tests.kit.workers import SECONDS, running
from tests.links.linkhelpers import FunctionTarget, bucket_task, change, waits
from tests.links.sqlhelpers import configure, reporting_of, table_of
from tests.observers.outbox import outboxhelpers as outbox

HANGING: Final = ("one", "two", "three")
KEYS: Final = dict.fromkeys(map(str, range(100)), 1)
"""Keys of all buckets of a link."""


def application(functions: Mapping[str, Callable[[Changes], object]]) -> cq.App:
    app = cq.App()

    def declare(name: str, function: Callable[[Changes], object]) -> None:
        app.target(name)(lambda source: FunctionTarget(function))

    for name, function in functions.items():
        declare(name, function)
    return app


class Hanging:
    """A target whose first call fails, and whose later ones do not return until the test ends."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end
        self.calls = 0

    def __call__(self, changes: Changes) -> None:
        self.calls += 1
        if self.calls > 1:
            self._end.wait(SECONDS)
        raise LinkFailed("it does not answer")


class Receiving:
    """A target that lets a test wait for entries."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)

    def __call__(self, changes: Changes) -> None:
        self._arrived.release(len(changes))

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self._arrived.acquire(timeout=SECONDS), "it waits for those that hang"


def test_targets_that_hang_delay_neither_other_links_nor_other_queues(db: Any, name: str) -> None:
    end, good, others = threading.Event(), Receiving(), Receiving()
    hanging = {each: Hanging(end) for each in HANGING}
    app = application({**hanging, "good": good, "others": others})
    other = f"{name}-other"
    cq.configure(db, name, links=[links.app(each) for each in (*HANGING, "good")])
    cq.configure(db, other, links=[links.app("others")])
    add(db, name, KEYS)

    with running(Worker(db, app, queues=[name, other])):
        try:
            good.wait_for(len(KEYS))
            wait_until(lambda: sum(each.calls > 1 for each in hanging.values()) >= 2)  # these never return
            for queue, target in ((name, good), (other, others)):
                add(db, queue, KEYS)
                target.wait_for(len(KEYS))
        finally:
            end.set()


def test_targets_that_hang_from_their_first_call_on_give_their_threads_places_to_others(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.2)
    end, calls, good = threading.Event(), threading.Semaphore(0), Receiving()

    def hang(changes: Changes) -> None:
        calls.release()
        assert end.wait(SECONDS), "the other links wait for it"

    app = application({"hanging": hang, "good": good})
    queues = [f"{name}-{number}" for number in range(3)]
    for queue in queues:
        cq.configure(db, queue, links=[links.app("hanging")])
        add(db, queue, KEYS)
    cq.configure(db, name, links=[links.app("good")])

    with running(Worker(db, app, queues=[*queues, name])):
        try:
            for _ in range(CONCURRENCY // 2):  # all places for steps that wait for other systems
                assert calls.acquire(timeout=SECONDS)
            add(db, name, KEYS)
            good.wait_for(len(KEYS))
        finally:
            end.set()
        wait_until(lambda: not any(waits(db, queue, "hanging") for queue in queues))


@pytest.mark.parametrize("fails", [False, True])
def test_a_target_that_cannot_be_made_at_first_stops_no_queue_and_is_made_later(
    db: Any, name: str, fails: bool
) -> None:
    """Its constructor may connect to a system that is down."""
    end, tried, good, late = threading.Event(), threading.Event(), Receiving(), Receiving()
    app = application({"good": good})

    @app.target("late")
    def make(source: links.Source) -> links.Target:
        tried.set()
        if fails and not end.is_set():
            raise ConnectionError("the broker is down")
        assert end.wait(SECONDS), "all queues wait for it"
        return FunctionTarget(late)

    other = f"{name}-other"
    cq.configure(db, name, links=[links.app("late")])
    cq.configure(db, other, links=[links.app("good")])
    add(db, name, KEYS)
    with running(Worker(db, app, queues=[name, other])):
        try:
            assert tried.wait(SECONDS)
            add(db, other, KEYS)
            good.wait_for(len(KEYS))
        finally:
            end.set()
        late.wait_for(len(KEYS))


def test_a_target_that_hangs_when_it_is_closed_does_not_stop_the_worker(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 0.1)
    end, closing, good = threading.Event(), threading.Event(), Receiving()

    class Closing(FunctionTarget):
        def close(self) -> None:
            closing.set()
            end.wait(SECONDS)

    first = Receiving()
    app = application({"good": good})
    app.target("closing")(lambda source: Closing(first))
    other = f"{name}-other"
    cq.configure(db, name, links=[links.app("closing")])
    cq.configure(db, other)
    add(db, name, KEYS)
    with running(Worker(db, app, queues=[name, other])):
        try:
            first.wait_for(len(KEYS))
            admin.remove_observer(db, name, "link:closing")
            assert closing.wait(SECONDS)
            cq.configure(db, other, links=[links.app("good")])  # which the worker's loop has to notice
            add(db, other, KEYS)
            good.wait_for(len(KEYS))
        finally:
            end.set()


def test_the_wait_for_the_close_of_any_target_has_a_limit(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 0.1)
    end, closed = threading.Event(), threading.Event()

    class Closing(FunctionTarget):
        def close(self) -> None:
            end.wait(SECONDS)
            closed.set()

    try:
        sender.Sender(db, Source(b"", name, "built-in", 1), Closing(Receiving())).close()
        assert not closed.is_set()
    finally:
        end.set()
    assert closed.wait(SECONDS)


@pytest.fixture
def stopping(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Callable[[str], None]]]:
    """Makes a function that stops all processes of the server at a point, once; a worker then waits for a second."""
    monkeypatch.setattr(postgresql, "ANSWER_SECONDS", 1.0)
    stopped = False

    def at(point: str) -> Callable[[str], None]:
        def stop(reached: str) -> None:
            nonlocal stopped
            if reached == point and not stopped:
                stopped = True
                postgres.send_signal(signal.SIGSTOP)

        return stop

    yield at
    postgres.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("point", ["locked", "applied"])
@pytest.mark.usefixtures("postgres_url")
def test_a_link_notices_that_postgresql_hangs(
    db: Any, name: str, point: str, stopping: Callable[..., Any], postgres: PostgresServer
) -> None:
    export = configure(db, name)
    change(db, name, {"a": 1})
    task = bucket_task(db, name, "a", stopping(point))

    assert task.run() > 0.0
    assert "the server has not answered for 1 s" in task.problem
    assert task.is_failing
    postgres.send_signal(signal.SIGCONT)
    while (pause := task.run()) != CAUGHT_UP:
        assert pause >= 0.0, task.problem
    assert (table_of(export), waits(db, name, "export"), task.problem) == ([("a", 1)], 0, "")


@pytest.mark.usefixtures("postgres_url")
def test_an_outbox_notices_that_postgresql_hangs(
    db: Any, name: str, stopping: Callable[..., Any], postgres: PostgresServer
) -> None:
    outbox.configure(db, name)
    outbox.insert(name, {"a": 1})
    task = outbox.outbox_task(db, name, stopping("deleting"))

    assert task.run() > 0.0
    assert "the server has not answered for 1 s" in task.problem
    postgres.send_signal(signal.SIGCONT)
    while (pause := task.run()) != DONE:
        assert pause >= 0.0, task.problem
    task.end()
    assert (outbox.values(db, name), outbox.table()) == ({"a": 1}, [])


@pytest.mark.usefixtures("postgres_url")
def test_a_reader_of_postgresql_waits_for_a_lock_no_longer_than_a_writer(db: Any, name: str) -> None:
    export = configure(db, name)
    for use in (reporting_of(export).reading, reporting_of(export).transaction):
        with use() as (conn, _):
            assert conn.execute(sa.text("SHOW lock_timeout")).scalar_one() == "30s"
