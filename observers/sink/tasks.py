"""The tasks of a worker for a queue's export to a sink."""

from __future__ import annotations

from typing import NamedTuple

from cq.config.queue import ObserverConfig, QueueConfig
from cq.keys.export import ExportKeys
from cq.observers.export.batch import ExportFailed
from cq.observers.export.failure_note import FailureNote
from cq.observers.export.task import ExportTask, kept_tasks
from cq.observers.scheduling.task import Task
from cq.observers.sink.exporter import SinkExporter
from cq.store.api import Database


class BatchLimits(NamedTuple):
    """The approximate maximum bytes and number of the entries that a sink receives at once."""

    bytes: int
    entries: int


def sink_tasks(
    db: Database, config: QueueConfig, observer: ObserverConfig, exporter: SinkExporter, limits: BatchLimits
) -> list[Task]:
    """The tasks for an export queue whose changes go to a sink: the keeper, and one for each bucket.

    If this process lacks an address, a secret or a package, returns no tasks and stores the failure: other workers may
    have them.
    """
    try:
        exporter.check_settings()
    except ExportFailed as error:
        FailureNote(db, ExportKeys(config.name), None).give_up(f"export of queue {config.name!r}", error)
        return []
    tasks = kept_tasks(db, config, observer, exporter)
    for task in tasks:
        if isinstance(task, ExportTask):
            task.batch_bytes, task.batch_entries = limits
    return tasks
