"""The workers of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

import cq
from cq import machine
from cq.observers.demos.counted import CountedDatabase, Meter
from cq.observers.worker import Worker
from cq.store.api import Database


@dataclass(frozen=True)
class WorkerRole:
    """A worker on a store, for these queues, or all.

    Attributes:
        url: of the store.
        queues: their names; none for all.
        meter: of what it writes.
        identity: by which one that is started again takes over the tasks of the one before, at once.
    """

    url: str | None
    queues: Sequence[str] = ()
    meter: Meter | None = None
    identity: str | None = None

    def run(self, stop: Event) -> None:
        """Work until told to stop."""
        db: Database = cq.open(self.url)
        worker = Worker(
            CountedDatabase(db, self.meter) if self.meter else db, queues=self.queues, identity=self.identity
        )

        def end() -> None:
            stop.wait()
            worker.stop()

        machine.start_thread(end, "stop")
        worker.run()
