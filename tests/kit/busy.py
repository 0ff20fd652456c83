"""A queue in use: adders and passes in threads of their own, and how often their transactions fail."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cq
from cq.admin.backfill import publish_generations
from cq.admin.rebucketing import finish_rebucket
from cq.app import App
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import QueueConfig, read_config
from cq.errors import CodeMismatch, CorruptData
from cq.observers.builtin import FACTORIES
from cq.observers.worker.worker import Worker
from cq.passes.plan import Limits
from cq.store.api import is_local
from cq.store.transact import transact
from tests.kit.faults import WrappedDatabase, WrappedTransaction
from tests.kit.workers import SECONDS

KEYS = [f"k{number}" for number in range(60)]
SMALL = Limits(read_bytes=400, load_bytes=300, write_bytes=600)
"""Of passes that fold, stage, and leave rows."""


class Busy:
    """Adders and passes over a queue in threads of their own; an error in one of them fails the test."""

    def __init__(self, db: Any, name: str, app: App, tasks: Callable[[], None] | None = None) -> None:
        self.db, self.name, self.app, self.tasks = db, name, app, tasks
        self.added: Counter[str] = Counter()
        self.turns = 0
        self.config: QueueConfig | None = None
        self.buckets: list[PassRunner] = []
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
        once = random.randbytes(8)
        transact(self.db, lambda tr: cq.CombineQueue(self.name).add(tr, updates, once=once))
        self.added.update(updates)

    def configure(self, app: App) -> None:
        """Have the queue observed as an application says, by code that has it."""
        app.configure(self.db, self.name)
        self.app = app

    def _passing(self) -> None:
        with suppress(CodeMismatch, CorruptData):  # it has been configured, or damaged, meanwhile
            config = transact(self.db, lambda tr: read_config(tr.snapshot, self.name))
            if config != self.config:
                self.buckets = [
                    PassRunner(self.db, code, number, limits=SMALL if number % 2 else None)
                    for code in self.app.code(config, FACTORIES).shapes
                    for number in range(code.config.buckets)
                ]
                self.config = config
            for bucket in self.buckets:
                bucket.combine()
            publish_generations(self.db, self.name)
            finish_rebucket(self.db, self.name)
            if self.tasks is not None:
                self.tasks()
        self.turns += 1


@contextmanager
def busy(db: Any, name: str, app: App, tasks: Callable[[], None] | None = None) -> Iterator[Busy]:
    """A queue in use, until the end of the block; `tasks` is what a worker does besides passes."""
    found = Busy(db, name, app, tasks)
    for thread in found.threads:
        thread.start()
    try:
        yield found
    finally:
        found.stopping.set()
        for thread in found.threads:
            thread.join()
    for error in found.errors:
        raise error


def in_threads(*bodies: Callable[[], object]) -> None:
    """Run all of them at once; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised again
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[body]) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def add_during_passes(db: Any, queue: cq.CombineQueue, worker: Worker, number: int) -> None:
    """Make at least `number` adds to the key "hot", and go on until the worker has made more than one pass."""
    deadline = time.monotonic() + 60
    while number > 0 or worker.totals.passes <= 1:
        assert time.monotonic() < deadline, f"the worker has made {worker.totals.passes} passes in 60 s"
        transact(db, lambda tr: queue.add(tr, {"hot": 1}))
        number -= 1


class Counting(WrappedDatabase):
    """A database that counts commits and retries.

    It is as local as the database that it wraps: an embedded store refuses reads at the versions of a chain.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.is_local = is_local(db)
        self.commits = self.errors = 0
        self._lock = threading.Lock()

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self.commits += what == "commit"
            self.errors += what == "on_error"
        return super().call(tr, what, *args, **kwargs)


def run_while_collecting(body: Callable[[], object], threads: int = 1) -> None:
    """Run a function in threads while the garbage collector runs again and again; fails if one of them hangs."""
    thresholds = gc.get_threshold()
    gc.set_threshold(3)
    try:
        running = [threading.Thread(target=body, daemon=True) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in running), "a finalizer waits for its own thread"
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
