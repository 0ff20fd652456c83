"""A process that exports the queue `words` to its sink, and kills itself at a point: `STORE POINT`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import cq
from cq.config.queue import read_config
from cq.observers.builtin import observer_tasks
from cq.observers.export.task import ExportTask
from cq.observers.kafka.exporter import KafkaExporter
from cq.observers.scheduling.runner import DONE
from cq.observers.webhook.exporter import WebhookExporter
from cq.store.transact import transact


def main(store: str, point: str) -> None:
    """Run the tasks of all buckets to their end; die at this point of the first one that has entries."""
    db: Any = cq.open(store)
    config = transact(db, lambda tr: read_config(tr.snapshot, "words"))

    def at(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    WebhookExporter.signal = staticmethod(at)
    KafkaExporter.signal = staticmethod(at)
    ExportTask.signal = staticmethod(at)
    keeper, *tasks = observer_tasks(db, config)["export"]
    keeper.run()
    for task in tasks:
        while (pause := task.run()) != DONE:
            if pause:
                sys.exit(task.problem)


if __name__ == "__main__":
    main(*sys.argv[1:])
