"""The worker processes of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import cq
from cq import runtime
from cq.cli.demos.harness.counted_database import CountedDatabase, Meter
from cq.observers.worker.worker import Worker
from cq.store.api import Database


@dataclass(frozen=True)
class WorkerRole:
    """A worker process on a store.

    Attributes:
        url: URL of the store.
        queues: names of queues; empty: all queues.
        meter: counts the writes; None: no counting.
        identity: identity of the worker: a restarted worker with the same identity gets its tasks at once.
    """

    url: str | None
    queues: Sequence[str] = ()
    meter: Meter | None = None
    identity: str | None = None

    def run(self, stop: Event) -> None:
        """Run the worker until `stop` is set."""
        db: Database = cq.open(self.url)
        worker = Worker(
            CountedDatabase(db, self.meter) if self.meter else db, queues=self.queues, identity=self.identity
        )

        def end() -> None:
            stop.wait()
            worker.stop()

        runtime.start_thread(end, "stop")
        worker.run()
