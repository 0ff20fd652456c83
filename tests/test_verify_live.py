"""`cq.verify` on a queue in use: no false alarm, whatever goes on; and repairs that lose and repeat nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import cq
from cq.app import App
from cq.backfill import switch_observers
from cq.batch import Limits
from cq.bucket import Bucket
from cq.config import QueueConfig, read_config
from cq.errors import CodeMismatch, NotNow
from cq.reshaping import finish_rebucket
from cq.store.transact import transact
from cq.testing import drain
from cq.verify import PARTS, Difference, Verification
from tests.faults import FaultyDatabase

KEYS = [f"k{number}" for number in range(60)]
OPERATIONS = [None, *(f"operation {number}" for number in range(40))]
SMALL = Limits(read_bytes=400, load_bytes=300, write_bytes=600)
"""Of passes that fold, stage, and leave rows."""


def watch(tr: Any, changes: list[cq.Change]) -> None:
    """An observer that writes nothing."""


def again(tr: Any, changes: list[cq.Change]) -> None:
    """Another one, which is told of all values while the queue is in use."""


class Busy:
    """Adders and passes over a queue in threads of their own; an error in one of them fails the test."""

    def __init__(self, db: Any, name: str, app: App) -> None:
        self.db, self.name, self.app = db, name, app
        self.turns = 0
        self.config: QueueConfig | None = None
        self.buckets: list[Bucket] = []
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._run, args=(each,)) for each in (self._adding, self._passing)
        ]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self.stopping.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told of by the test
            self.errors.append(error)

    def _adding(self) -> None:
        updates = {key: random.randint(1, 3) for key in random.sample(KEYS, 5)}
        once = random.choice(OPERATIONS)
        transact(self.db, lambda tr: cq.CombineQueue(self.name).add(tr, updates, once=once))

    def configure(self, app: App) -> None:
        """Have the queue observed as an application says, by code that has it."""
        app.configure(self.db, self.name)
        self.app = app

    def _passing(self) -> None:
        config = transact(self.db, lambda tr: read_config(tr.snapshot, self.name))
        if config != self.config:
            self.config = config
            self.buckets = [
                Bucket(self.db, code, number, limits=SMALL if number % 2 else None)
                for code in self.app.code(config).shapes
                for number in range(code.config.buckets)
            ]
        try:
            for bucket in self.buckets:
                bucket.combine()
            switch_observers(self.db, self.name)
            finish_rebucket(self.db, self.name)
        except CodeMismatch:  # it has been configured meanwhile
            pass
        self.turns += 1


@contextmanager
def busy(db: Any, name: str, app: App) -> Iterator[Busy]:
    """A queue in use, until the end of the block."""
    found = Busy(db, name, app)
    for thread in found.threads:
        thread.start()
    try:
        yield found
    finally:
        found.stopping.set()
        for thread in found.threads:
            thread.join()
    assert found.errors == []


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
        while changes:
            if done(changes[0]):
                del changes[0]
            turns = found.turns
            while found.turns < turns + 2 and not found.errors:
                assert verified(faulty, name) == []
    drain(db, name, app=more)

    assert verified(db, name) == []
