"""The queue of cq as a measured system."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import cq
from cq import admin
from cq.admin.queue_status import is_drained
from cq.cli.bench.systems.stored import opened
from cq.cli.bench.systems.system import (
    STOCK,
    Add,
    BenchWorkload,
    Drain,
    System,
    requests,
    with_visitors,
)
from cq.config.rollup import RollUp
from cq.deciders import bounded
from cq.errors import QueueNotConfigured
from cq.keys.link import LinkKeys
from cq.observers.links import spec as links
from cq.observers.links.observer import add
from cq.observers.links.registry import opened_link
from cq.observers.top.index import top
from cq.observers.worker.service import tune_garbage_collection
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from cq.store.watch import wait_until

_REPORTING_ENV: Final = "CQ_BENCH_REPORTING_URL"
_WATCH_SECONDS: Final = 0.1
_ROWS_ADDED: Final = 5_000
"""Number of rows that one transaction adds to the log of an export."""
ANSWER_SECONDS: Final = 120.0


@dataclass(frozen=True)
class QueueSystem(System):
    """A combine queue of sums, or of sketches, which estimate the number of distinct visitors of each key.

    Args:
        url: URL of the store.
        queue: name of the queue.
        buckets: as for `cq.configure`.
        cloud: whether workers keep a top and publish it.
        reporting: URL of the database that the queue is exported to; None: no export.
        rollup: as for `cq.configure`.
        distinct: whether it has sketches.
    """

    name: str
    url: str
    store: str
    queue: str
    buckets: int | None
    cloud: bool = False
    reporting: str | None = None
    rollup: str | None = None
    distinct: bool = False

    defers = True

    @property
    def precision(self) -> float:
        """The error of a key's sketch has a standard deviation of 1.6 percent, and that of the sum is smaller."""
        return 0.1 if self.distinct else 0.0

    @property
    def queues(self) -> list[str]:
        """The names of the queue, and of the levels of its roll-up."""
        levels = RollUp.parse(self.rollup or "none").levels
        return [self.queue, *(level.queue_of(self.queue) for level in levels)]

    def prepare(self) -> None:
        db = self.open()
        observers = [top()] if self.cloud else []
        value, combiner = ("distinct", "distinct") if self.distinct else (int, "sum")
        cq.configure(
            db,
            self.queue,
            key=str,
            value=value,
            combiner=combiner,
            buckets=self.buckets,
            rollup=self.rollup,
            observers=observers,
            links=[links.table(self.queue, url_env=_REPORTING_ENV)] if self.reporting else [],
        )
        if self.reporting is not None:
            with opened_link(db, self.queue) as opened_table:
                opened_table.target.create()

    def open(self) -> Any:
        """The store; also sets the URL of the reporting database for this process."""
        if self.reporting is not None:
            os.environ[_REPORTING_ENV] = self.reporting
        return opened(self.url)

    def adder(self, stack: ExitStack) -> Add:
        # The database stays open: the adders of a process share it.
        db, queue = self.open(), cq.CombineQueue(self.queue)
        if self.distinct:
            return lambda updates: transact(
                db, partial(queue.add, updates=with_visitors(updates)), write_only=True
            )
        return lambda updates: transact(db, partial(queue.add, updates=updates), write_only=True)

    def drainer(self, stack: ExitStack, place: int) -> Drain:
        """A worker that runs all the time; the queue is paused except during a call.

        Only the first drainer resumes the queue and waits, on behalf of all: its call ends when all workers are done.
        """
        if place == 0:
            self._pause()
        self.run_worker(stack)
        return self._drain if place == 0 else lambda: None

    def _drain(self) -> None:
        for queue in self.queues:
            admin.resume(self.open(), queue)
        self.wait_until_done()
        self._pause()

    def _pause(self) -> None:
        for queue in self.queues:
            admin.pause(self.open(), queue, reason="updates are being added")

    def queue_rows(self, workload: BenchWorkload) -> None:
        """Add a value of 1 for each key of the workload to the export's log, without changing the queue."""
        for start in range(0, workload.keys, _ROWS_ADDED):
            rows = workload.transaction(range(start, min(start + _ROWS_ADDED, workload.keys)))
            transact(self.open(), partial(add, queue=self.queue, entries=rows))

    def run_worker(self, stack: ExitStack) -> None:
        """Run a worker in a thread, otherwise like `cq worker`; `stack` stops it."""
        tune_garbage_collection()
        worker = Worker(self.open(), queues=self.queues)
        thread = threading.Thread(target=worker.run, name="worker", daemon=True)
        thread.start()
        # A stack calls the last function first: `stop` before `join`.
        stack.callback(thread.join)
        stack.callback(worker.stop)

    def sums(self) -> Mapping[str, Any]:
        sums = {f"queue {name}": self._sum(name) for name in self.queues}
        if self.reporting is not None:
            import sqlalchemy as sa

            with opened_link(self.open(), self.queue) as link:
                target: Any = link.target
            with target.reporting.reading() as (conn, dialect):
                table = target.definition.table(dialect)
                total = sa.select(sa.func.coalesce(sa.func.sum(table.c.value), 0))
                sums["the exported table"] = conn.execute(total).scalar()
        return sums

    def _sum(self, queue: str) -> Any:
        rows = cq.CombineQueue(queue).scan(self.open(), limit=500 if self.distinct else 10_000)
        return sum(value.estimate if self.distinct else value for _, value in rows)

    def remove(self) -> None:
        with suppress(QueueNotConfigured):  # `prepare` may not have created it
            admin.delete(self.open(), self.queue)

    def wait_until_done(self) -> None:
        """Wait until all updates are combined and exported; not for the cloud, which is published once per second."""
        db = self.open()
        for queue in self.queues:  # each one before those that are derived from it
            while not is_drained(db, queue, wait=_WATCH_SECONDS):
                pass
        if self.reporting is not None:
            wait_until(db, self._watch_export)

    def _watch_export(self, tr: Any) -> tuple[None, Any]:
        rows = tr.snapshot.get_range(*LinkKeys(self.queue, "export").all_rows(), limit=1).to_list()
        return None, tr.watch(rows[0].key) if rows else None


@dataclass(frozen=True)
class DecidingQueue(QueueSystem):
    """A queue with the decider `bounded`; the state is the number of pieces taken.

    Args:
        waits: whether an adder asks by `ask_now`, which waits for the answer, instead of in its own transaction.
    """

    waits: bool = False

    def prepare(self) -> None:
        cq.configure(self.open(), self.queue, key=str, decider=bounded(0, STOCK), buckets=self.buckets)

    def adder(self, stack: ExitStack) -> Add:
        db, queue = self.open(), cq.CombineQueue[str, int](self.queue)

        def ask_now(updates: Mapping[str, Any]) -> None:
            for key in requests(updates):
                queue.ask_now(db, key, 1, timeout=ANSWER_SECONDS)

        def ask(updates: Mapping[str, Any]) -> None:
            asked = [(key, 1) for key in requests(updates)]
            transact(db, lambda tr: queue.ask_many(tr, asked))

        return ask_now if self.waits else ask
