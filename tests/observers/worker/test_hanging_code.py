"""Code of the application that hangs in passes delays no other queue; slow code for one key, no other bucket."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import cq
from cq.observers.scheduling import runner
from cq.observers.scheduling.fair_queue import Lane
from cq.observers.scheduling.runner import DONE, Runner
from cq.observers.worker.worker import CONCURRENCY, Worker
from tests.kit.queues import add
from tests.kit.workers import SECONDS, Told, running

BUCKETS = 16
KEYS = dict.fromkeys(map(str, range(100)), 1)
"""Keys of all buckets."""


def test_observers_that_hang_delay_no_other_queue(
    db: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.2)
    end, calls, told = threading.Event(), threading.Semaphore(0), Told()

    def hang(tr: Any, changes: object) -> None:
        calls.release()
        assert end.wait(SECONDS), "the other queues wait for it"

    app, hanging = cq.App(), [f"{name}-{number}" for number in range(2)]
    for queue in hanging:
        app.queue(queue, observers=[cq.Observer("hang", 1, hang)])
        app.configure(db, queue, buckets=BUCKETS)
        add(db, queue, KEYS)
    app.queue(name, observers=[cq.Observer("told", 1, told)])
    app.configure(db, name, buckets=1)

    with running(Worker(db, app, queues=[*hanging, name], beat=0.2)):
        try:
            for _ in range(CONCURRENCY):
                assert calls.acquire(timeout=SECONDS)
            add(db, name, {"a": 1})
            told.wait_for(a=1)
        finally:
            end.set()


def test_a_step_of_an_application_that_is_slow_alone_delays_no_other_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.0)
    slow, end, ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def work(task: str) -> float:
        if task.startswith("slow"):
            slow.release()
            assert end.wait(SECONDS)
        ended.release()
        return DONE

    def fail(task: str, error: BaseException) -> float:
        raise error

    passes = Runner(
        work,
        fail,
        lambda task: None,
        threads=4,
        lane=lambda task: Lane("q", kind="pass", calls_application=True),
    )
    passes.submit("slow")
    assert slow.acquire(timeout=SECONDS)
    passes.submit("quick")
    passes.replace_hanging()
    assert ended.acquire(timeout=SECONDS)
    assert passes.stuck(SECONDS) == []

    passes.submit("slow too")
    assert slow.acquire(timeout=SECONDS)
    passes.replace_hanging()
    passes.submit("waits")  # half of the threads hang: it probably would, too
    assert not ended.acquire(timeout=0.1)
    end.set()
    assert passes.wait_idle(SECONDS)
    assert passes.close(SECONDS)
