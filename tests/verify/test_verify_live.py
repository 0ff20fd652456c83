"""`cq.verify.queue` on a queue in use: no false alarm, whatever goes on; and repairs that lose and repeat nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq import admin
from cq.app import App
from cq.config.flags import Flags, read_flags
from cq.config.queue import read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import NotNow
from cq.keys import QueueKeys
from cq.passes.combine_pass import Pass
from cq.store.transact import transact
from cq.testing import assert_values, drain
from cq.verify.piece import Difference
from cq.verify.queue import CHECKS
from cq.verify.verification import Verification
from tests.kit.busy import KEYS, busy
from tests.kit.faults import FaultyDatabase, Overtaken
from tests.kit.queues import commits, put, stored


def watch(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that writes nothing."""


def again(tr: Any, changes: list[cq.Change]) -> None:
    """Another one, which is told of all values while the queue is in use."""


def verified(db: Any, name: str, **settings: Any) -> list[Difference]:
    """What is found in small pieces, so that much happens between them."""
    verification = Verification(db, name, CHECKS, **settings)
    verification.rows, verification.size = 20, 2_000
    return list(verification.run())


def done(change: Callable[[], object]) -> bool:
    """Whether a change of the queue need not wait for another one."""
    try:
        change()
    except NotNow:
        return False
    return True


def test_a_queue_in_use_has_no_differences(db: Any, name: str) -> None:
    """While it is added to, combined, rebucketed, purged, and gets an observer; with faults of the store."""
    random.seed(0)
    app = App()
    app.queue(name, observers=[watch])
    app.configure(db, name, buckets=4)
    more = App()
    more.queue(name, observers=[watch, again])
    faulty = FaultyDatabase(db, 0)

    with busy(faulty, name, app) as found:
        changes: list[Callable[[], object]] = [
            lambda: admin.rebucket(db, name, 7),
            lambda: admin.purge(db, name),
            lambda: found.configure(more),
            lambda: admin.rebucket(db, name, 3),
        ]
        while changes and not found.errors:
            if done(changes[0]):
                del changes[0]
            turns = found.turns
            while found.turns < turns + 2 and not found.errors:
                assert verified(faulty, name) == []
    drain(db, name, app=more)

    assert verified(db, name) == []


def test_adders_cannot_keep_a_verification_busy_for_ever(db: Any, name: str) -> None:
    """Rows that are added behind those looked at are looked at next time."""
    cq.configure(db, name, buckets=1)
    added = 0

    def add(verification: Verification) -> None:
        nonlocal added
        added += 1
        assert added < 100
        transact(db, lambda tr: cq.CombineQueue(name).add(tr, {"a": 1}))

    verification = Verification(db, name, CHECKS)
    verification.rows, verification.progress = 1, add
    add(verification)
    assert list(verification.run()) == []


@pytest.mark.parametrize("kind", ["row-update", "row-future", "row-unreadable", "value-empty", "value-key"])
def test_a_pass_under_way_conflicts_with_a_repair_of_its_bucket(db: Any, name: str, kind: str) -> None:
    """As it may have read what the repair changes."""
    cq.configure(db, name, buckets=2)
    queue, handle = QueueKeys(name), cq.CombineQueue(name)
    own = [key for key in KEYS if bucket_of(codec.encode(key), 2) == 0][:2]
    transact(db, lambda tr: handle.add(tr, dict.fromkeys(own, 1)))
    key, value = stored(db, queue.all_rows())[0]
    writes = {
        "row-update": {key[:-18] + bytes(8) + key[-10:]: codec.encode([None, codec.encode(own[0]), "x"])},
        "row-future": {key[:-18] + b"\x7f" * 8 + key[-10:]: value},
        "row-unreadable": {key[:-18] + bytes(8) + key[-10:]: b"damaged"},
        "value-empty": {queue.value(codec.encode(own[0])): codec.encode(0)},
        "value-key": {queue.values()[0] + bytes(4) + codec.encode(own[0]): codec.encode(1)},
    }[kind]
    put(db, writes)
    tr = db.create_transaction()
    Pass(tr, App().code(read_config(tr, name)), 0).run()

    found = verified(db, name, repair=True)

    assert [(each.kind, each.repaired) for each in found] == [(kind, True)]
    assert not commits(tr)


def test_a_repair_does_not_undo_what_somebody_else_has_just_done(db: Any, name: str) -> None:
    cq.configure(db, name)
    put(db, {QueueKeys(name).flags: b"damaged"})

    def set_anew() -> None:
        put(db, {QueueKeys(name).flags: Flags(priority=50).to_bytes()})

    overtaken: Any = Overtaken(db, set_anew)
    found = list(Verification(overtaken, name, CHECKS, repair=True).run())

    assert found == []
    assert transact(db, lambda tr: read_flags(tr, name)) == Flags(priority=50)


def test_repairs_of_a_queue_in_use_lose_and_repeat_nothing(db: Any, name: str) -> None:
    """Notifications are lost, states broken, while it is added to and combined, with faults; sums stay exact."""
    random.seed(0)
    app = App()
    cq.configure(db, name, buckets=3)
    queue = QueueKeys(name)
    mended = 0

    with busy(FaultyDatabase(db, 0), name, app) as found:
        while mended < 30 and not found.errors:
            transact(db, lambda tr: damage(tr, queue))
            mended += sum(each.repaired for each in verified(db, name, repair=True))
    assert [each for each in verified(db, name, repair=True) if not each.repaired] == []
    assert verified(db, name) == []
    drain(db, name)

    assert verified(db, name) == []
    assert_values(db, name, found.added)


def damage(tr: Any, queue: QueueKeys) -> None:
    """Lose a notification, break the state of a bucket, or write a row or a value that is none."""
    bucket = random.randrange(3)
    match random.randrange(4):
        case 0:
            tr.clear(queue.notification(1, bucket))
        case 1:
            tr.set(queue.state(1, bucket), b"damaged")
        case 2:
            tr.set(queue.rows(1, bucket)[0] + bytes(8) + random.randbytes(10), b"damaged")
        case _:
            tr.set(queue.value(codec.encode(f"damaged {random.random()}")), codec.encode(0))
