"""Versionstamps and watches obey the deadline of their transaction until its commit begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from cq import runtime
from cq.store.embedded import Database, Transaction
from tests.kit.clocks import Stopped
from tests.store.calls import code_of

FUTURES: dict[str, Callable[[Transaction], Any]] = {
    "stamp": lambda tr: tr.get_versionstamp(),
    "watch": lambda tr: tr.watch(b"a"),
}

pytestmark = pytest.mark.parametrize("name", FUTURES)


def end_of(future: Any) -> Callable[[], int | None]:
    """Wait in a thread, as a failure may be to wait for ever; returns what waits for the code of its error."""
    codes: SimpleQueue[int | None] = SimpleQueue()
    threading.Thread(target=lambda: codes.put(code_of(future.wait)), daemon=True).start()
    return lambda: codes.get(timeout=60)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_wait_without_a_commit_ends_at_the_deadline(db: Database, name: str, is_first: bool) -> None:
    tr = db.create_transaction()
    if is_first:
        tr.options.set_timeout(50)
    future = FUTURES[name](tr)
    tr.options.set_timeout(50)
    tr.set(b"b", b"1")

    assert end_of(future)() == 1031
    assert code_of(lambda: tr.commit().wait()) == 1031


def test_a_wait_that_has_begun_ends_at_a_later_deadline(db: Database, name: str) -> None:
    tr = db.create_transaction()
    future = FUTURES[name](tr)
    ends = [end_of(future) for _ in range(3)]
    tr.options.set_timeout(3_600_000)
    ends += [end_of(future) for _ in range(3)]
    tr.options.set_timeout(50)

    assert [end() for end in ends] == [1031] * 6


@pytest.mark.parametrize("is_first", [True, False])
def test_a_callback_is_called_at_the_deadline(db: Database, name: str, is_first: bool) -> None:
    tr = db.create_transaction()
    future, called = FUTURES[name](tr), SimpleQueue[Any]()
    if is_first:
        future.on_ready(called.put)
        future.on_ready(called.put)
    tr.options.set_timeout(50)
    if not is_first:
        future.on_ready(called.put)
        future.on_ready(called.put)

    for _ in range(2):
        assert called.get(timeout=60) is future
    assert code_of(future.wait) == 1031


def test_it_is_ready_from_the_deadline_on(db: Database, name: str) -> None:
    """And the last deadline counts; only a transaction whose deadline has passed stays ended."""
    clock = Stopped()
    with runtime.using(clock):
        tr = db.create_transaction()
        future = FUTURES[name](tr)
        tr.options.set_timeout(1_000)
        tr.options.set_timeout(2_000)
        clock.now += 1.5
        assert not future.is_ready()
        tr.options.set_timeout(0)
        clock.now += 1.5
        assert not future.is_ready()
        tr.options.set_timeout(4_000)
        clock.now += 1.5
        assert future.is_ready()
        tr.options.set_timeout(0)
        assert code_of(future.wait) == code_of(lambda: tr.get(b"a").wait()) == 1031


def test_a_commit_ends_the_deadline(db: Database, name: str) -> None:
    clock = Stopped()
    with runtime.using(clock):
        tr = db.create_transaction()
        tr.options.set_timeout(1_000)
        future, called = FUTURES[name](tr), threading.Event()
        future.on_ready(lambda _: called.set())
        tr.set(b"b", b"1")
        tr.commit().wait()
        clock.now += 1.5
        assert future.is_ready() is (name == "stamp")
    db[b"a"] = b"1"

    assert called.wait(60)
    assert code_of(future.wait) is None
    for thread in threading.enumerate():
        if thread.name == "cq-deadline":
            thread.join(60)
            assert not thread.is_alive()
