"""`cq.verify` on a queue in use: no false alarm, whatever goes on; and repairs that lose and repeat nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import cq
from cq import codec
from cq.app import App
from cq.errors import NotNow
from cq.keys import QueueKeys
from cq.store.transact import transact
from cq.testing import assert_values, drain
from cq.verify import PARTS, Difference, Verification
from tests.busy import busy
from tests.faults import FaultyDatabase


def watch(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that writes nothing."""


def again(tr: Any, changes: list[cq.Change]) -> None:
    """Another one, which is told of all values while the queue is in use."""


def verified(db: Any, name: str, **settings: Any) -> list[Difference]:
    """What is found in small pieces, so that much happens between them."""
    return list(Verification(db, name, parts=PARTS, rows=20, size=2_000, **settings).run())


def done(change: Callable[[], object]) -> bool:
    """Whether a change of the queue need not wait for another one."""
    try:
        change()
    except NotNow:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_in_use_has_no_differences(db: Any, name: str, seed: int) -> None:
    """While it is added to, combined, rebucketed, purged, and gets an observer; with faults of the store."""
    random.seed(seed)
    app = App()
    app.queue(name, observers=[watch])
    app.configure(db, name, buckets=4)
    more = App()
    more.queue(name, observers=[watch, again])
    faulty = FaultyDatabase(db, seed)

    with busy(faulty, name, app) as found:
        changes: list[Callable[[], object]] = [
            lambda: cq.rebucket(db, name, 7),
            lambda: cq.purge(db, name),
            lambda: found.configure(more),
            lambda: cq.rebucket(db, name, 3),
        ]
        while changes and not found.errors:
            if done(changes[0]):
                del changes[0]
            turns = found.turns
            while found.turns < turns + 2 and not found.errors:
                assert verified(faulty, name) == []
    drain(db, name, app=more)

    assert verified(db, name) == []


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
