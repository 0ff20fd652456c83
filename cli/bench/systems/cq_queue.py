"""The queue of cq as a measured system."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import cq
from cq.admin.queue_status import is_drained
from cq.cli.bench.systems.stored import opened
from cq.cli.bench.systems.system import Add, Drain, System, WrongSum
from cq.errors import QueueNotConfigured
from cq.keys.export import ExportKeys
from cq.observers.export.spec import export_spec
from cq.observers.sql.configured import find_export
from cq.observers.top.index import top
from cq.observers.worker.service import tune_garbage_collection
from cq.observers.worker.worker import Worker
from cq.store.transact import transact
from cq.store.watch import wait_until

_REPORTING_ENV: Final = "CQ_BENCH_REPORTING_URL"
_WATCH_SECONDS: Final = 0.1


@dataclass(frozen=True)
class QueueSystem(System):
    """A combine queue of sums.

    Args:
        url: URL of the store.
        store: kind of the store.
        queue: name of the queue.
        kind: type of the values.
        buckets: as for `cq.configure`.
        cloud: whether workers keep a top and publish it.
        reporting: URL of the database that the queue is exported to; None: no export.
    """

    url: str
    store: str
    queue: str
    kind: str
    buckets: int | None
    cloud: bool = False
    reporting: str | None = None
    defers: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """`cq`, with a suffix for each observer."""
        return "cq" + "+cloud" * self.cloud + "+export" * (self.reporting is not None)

    @property
    def queues(self) -> list[str]:
        """The names of the queue, and of further queues that workers derive from it."""
        return [self.queue]

    def settings(self) -> dict[str, Any]:
        """The settings of the queue, for `cq.configure`."""
        observers = [top()] if self.cloud else []
        if self.reporting is not None:
            observers.append(export_spec(self.queue, url_env=_REPORTING_ENV))
        shape = {"key": str, "value": self.kind, "combiner": "sum", "buckets": self.buckets}
        return {**shape, "observers": observers}

    def prepare(self) -> None:
        db = self.open()
        cq.configure(db, self.queue, **self.settings())
        if self.reporting is not None:
            from cq.observers.sql.check import init  # SQLAlchemy takes long to import

            export = find_export(db, self.queue)
            init(export.reporting, export.definition)

    def open(self) -> Any:
        """The store; also sets the URL of the reporting database for this process."""
        if self.reporting is not None:
            os.environ[_REPORTING_ENV] = self.reporting
        return opened(self.url)

    def adder(self, stack: ExitStack) -> Add:
        # The database stays open: the adders of a process share it.
        db, queue = self.open(), cq.CombineQueue(self.queue)
        return lambda updates: transact(db, partial(queue.add, updates=updates))

    def drainer(self, stack: ExitStack, place: int, of: int) -> Drain:
        """A worker that runs all the time; the queue is paused except during a call.

        Only the first drainer resumes the queue and waits, on behalf of all: its call ends when all workers are done.
        """
        if place == 0:
            self._pause()
        self.run_worker(stack)
        return self._drain if place == 0 else lambda: None

    def _drain(self) -> None:
        for queue in self.queues:
            cq.resume(self.open(), queue)
        self.wait_until_done()
        self._pause()

    def _pause(self) -> None:
        for queue in self.queues:
            cq.pause(self.open(), queue, reason="updates are being added")

    def run_worker(self, stack: ExitStack) -> None:
        """Run a worker in a thread, otherwise like `cq worker`; `stack` stops it."""
        tune_garbage_collection()
        worker = Worker(self.open(), queues=self.queues)
        thread = threading.Thread(target=worker.run, name="worker", daemon=True)
        thread.start()
        # A stack calls the last function first: `stop` before `join`.
        stack.callback(thread.join)
        stack.callback(worker.stop)

    def total(self) -> Any:
        """The sum of all values; raises `WrongSum` if the exported table has another sum."""
        found = self.sum_of(self.queue)
        if self.reporting is not None and (exported := self._exported(self.open())) != found:
            raise WrongSum(
                f"the exported counts have the sum {exported:,}, the counts of the queue {found:,}"
            )
        return found

    def sum_of(self, queue: str) -> Any:
        """The sum of all values of a queue."""
        return sum(value for _, value in cq.CombineQueue(queue).scan(self.open(), limit=10_000))

    def _exported(self, db: Any) -> Any:
        import sqlalchemy as sa

        export = find_export(db, self.queue)
        with export.reporting.reading() as (conn, dialect):
            table = export.definition.table(dialect)
            return conn.execute(sa.select(sa.func.coalesce(sa.func.sum(table.c.value), 0))).scalar()

    def remove(self) -> None:
        with suppress(QueueNotConfigured):  # `prepare` may not have created it
            cq.delete(self.open(), self.queue)

    def wait_until_done(self) -> None:
        """Wait until all updates are combined and exported; not for the cloud, which is published once per second."""
        db = self.open()
        for queue in self.queues:  # each one before those that are derived from it
            while not is_drained(db, queue, wait_seconds=_WATCH_SECONDS):
                pass
        if self.reporting is not None:
            wait_until(db, self._watch_export)

    def _watch_export(self, tr: Any) -> tuple[None, Any]:
        rows = tr.snapshot.get_range(*ExportKeys(self.queue).all_rows(), limit=1).to_list()
        return None, tr.watch(rows[0].key) if rows else None
