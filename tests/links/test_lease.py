"""The lease of a bucket: a target without positions gets entries of a key in order, whichever worker sends them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cq.keys.link import LinkKeys
from cq.keys.membership import worker as worker_key
from cq.links import Changes
from cq.observers.links import lease
from cq.observers.links.failure_note import STOPPED_SECONDS
from cq.observers.links.lease import HELD_SECONDS
from cq.observers.links.state import Control, read_view
from cq.observers.links.task import LinkTask
from cq.observers.scheduling.membership import Membership
from cq.observers.scheduling.runner import CAUGHT_UP
from cq.store.transact import transact
from tests.kit.workers import SECONDS
from tests.links.linkhelpers import OWN, add, task_of


class Slow:
    """A function of a target whose calls wait until they are let go; it notes each entry when the call ends."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, bytes]] = []
        self.called = threading.Event()
        self.go = threading.Event()

    def __call__(self, changes: Changes) -> None:
        self.called.set()
        assert self.go.wait(SECONDS)
        self.entries += [(entry.key, entry.sequence) for entry in changes.entries]


def bucket_task(db: Any, name: str, function: Any, worker: bytes) -> LinkTask:
    """The task of the bucket of the key `a`, acquired by a worker."""
    task = task_of(db, name, "a", function)
    task.enter(worker)
    return task


def registered(db: Any) -> Membership:
    """A live worker, which has beaten once."""
    member = Membership(db, queues=["none"])
    member.beat(member.me.report)
    return member


def holder(db: Any, name: str, bucket: int) -> bytes:
    """The id of the worker with the lease."""
    return (
        transact(db, lambda tr: read_view(tr.snapshot, LinkKeys(name, OWN), [bucket])()).states[bucket].holder
    )


def put(db: Any, name: str, value: int = 1) -> None:
    add(db, name, ("a", value))


def put_control(db: Any, name: str, control: Control) -> None:
    transact(db, lambda tr: tr.set(LinkKeys(name, OWN).control, control.to_bytes()))


@pytest.fixture
def slow() -> Slow:
    return Slow()


def called(task: LinkTask) -> threading.Thread:
    """A step of the task in a thread of its own."""
    thread = threading.Thread(target=task.run)
    thread.start()
    return thread


def test_a_new_owner_waits_for_the_last_call_of_the_former_one(db: Any, name: str, slow: Slow) -> None:
    put(db, name)
    first, second = registered(db), registered(db)
    before = bucket_task(db, name, slow, first.id)
    after = bucket_task(db, name, slow, second.id)
    call = called(before)
    assert slow.called.wait(SECONDS)
    before.end()  # the worker has released the task, whose call is still under way
    put(db, name, 2)
    assert after.run() == HELD_SECONDS
    assert slow.entries == []
    slow.go.set()
    call.join(SECONDS)
    assert holder(db, name, after.bucket) == b""
    while after.run() >= 0.0:
        pass
    assert holder(db, name, after.bucket) == second.id
    assert len(slow.entries) == 2
    assert slow.entries == sorted(slow.entries)


def test_the_lease_of_a_dead_worker_is_free(db: Any, name: str, slow: Slow) -> None:
    slow.go.set()
    put(db, name)
    dead, alive = registered(db), registered(db)
    before, after = (bucket_task(db, name, slow, each.id) for each in (dead, alive))
    assert before.run() == CAUGHT_UP
    put(db, name, 2)
    assert after.run() == HELD_SECONDS
    transact(db, lambda tr: tr.clear(worker_key(dead.id)))  # as the workers do that find it dead
    assert after.run() == CAUGHT_UP
    assert len(slow.entries) == 2


def test_a_hanging_call_keeps_the_lease_for_a_limited_time(
    db: Any, name: str, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HOLD_SECONDS", 0.0)
    put(db, name)
    stalled, alive = registered(db), registered(db)
    before = bucket_task(db, name, slow, stalled.id)
    call = called(before)
    assert slow.called.wait(SECONDS)
    other = Slow()
    other.go.set()
    after = bucket_task(db, name, other, alive.id)
    assert after.run() == HELD_SECONDS  # the wait begins
    assert after.run() == CAUGHT_UP
    assert len(other.entries) == 1
    slow.go.set()
    call.join(SECONDS)
    assert slow.entries == other.entries  # again, and not newer: the sequences say so


def test_a_drain_waits_for_a_live_worker_and_takes_no_lease(db: Any, name: str, slow: Slow) -> None:
    slow.go.set()
    put(db, name)
    member = registered(db)
    owner, drain = (bucket_task(db, name, slow, each) for each in (member.id, b""))
    assert owner.run() == CAUGHT_UP
    put(db, name, 2)
    assert drain.run() == HELD_SECONDS
    owner.end()
    assert drain.run() == CAUGHT_UP
    assert holder(db, name, drain.bucket) == b""


def test_a_paused_bucket_takes_no_lease(db: Any, name: str, slow: Slow) -> None:
    slow.go.set()
    put(db, name)
    member = registered(db)
    task = bucket_task(db, name, slow, member.id)
    put_control(db, name, Control(paused=True))
    assert task.run() == STOPPED_SECONDS
    assert holder(db, name, task.bucket) == b""
    put_control(db, name, Control())
    task.signal = lambda point: task.end() if point == "read" else None  # released before the call
    assert task.run() == CAUGHT_UP
    assert holder(db, name, task.bucket) == b""
    assert len(slow.entries) == 1
