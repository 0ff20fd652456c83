"""A process that exports a queue until it is killed, and may kill itself: `STORE QUEUE SEED [CHANCE]`."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import cq
from cq.observers.export.task import ExportTask
from cq.observers.exporters import export_tasks
from cq.observers.sql.configured import find_export
from cq.observers.sql.exporter import SqlExporter
from tests.observers.export.exporthelpers import with_settings


def main(store: str, queue: str, seed: str, chance: str = "0") -> None:
    """Run the tasks round and round; at each point of them, die with this chance."""
    db: Any = cq.open(store)
    draw = random.Random(seed)
    export = find_export(db, queue)

    def at(point: str) -> None:
        if draw.random() < float(chance):
            os.kill(os.getpid(), signal.SIGKILL)

    exporter = SqlExporter(export.reporting, export.definition, export.store)
    exporter.signal = at
    keeper, *others = export_tasks(db, export.config, export.observer)
    tasks = [
        with_settings(
            ExportTask(db, queue, bucket, exporter), signal=at, batch_entries=draw.choice([1, 3, 50])
        )
        for bucket in range(len(others))
    ]
    os.write(1, b"ready\n")
    while True:
        for task in draw.sample([keeper, *tasks], len(tasks) + 1):
            task.run()
        time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
