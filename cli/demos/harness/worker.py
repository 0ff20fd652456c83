"""The worker processes of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import cq
from cq import runtime
from cq.cli.demos.harness.counted_database import CountedDatabase, Meter
from cq.observers.worker.worker import Worker
from cq.store.api import Database


def run_worker(
    stop: Event, *, url: str, queues: Sequence[str], meter: Meter | None = None, identity: str | None = None
) -> None:
    """Run a worker until `stop` is set.

    Args:
        stop: set when the process must end.
        url: URL of the store.
        queues: names of queues; empty: all queues.
        meter: counts the writes; None: no counting.
        identity: identity of the worker: a restarted worker with the same identity gets its tasks at once.
    """
    db: Database = cq.open(url)
    worker = Worker(CountedDatabase(db, meter) if meter else db, queues=queues, identity=identity)

    def end() -> None:
        stop.wait()
        worker.stop()

    # The worker has the main thread: its errors end the process.
    runtime.start_thread(end, "stop")
    worker.run()
