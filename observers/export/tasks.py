"""The tasks of a worker for an export queue: the keeper and one task for each bucket.

All tasks of a queue share one exporter. `cq.observers.sql` and `cq.observers.forward` make the exporters of observers.
"""

from __future__ import annotations

from cq.admin.backfill import current_generation
from cq.config.queue import ObserverConfig, QueueConfig
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.export import ExportKeys
from cq.observers.export.batch import Exporter
from cq.observers.export.keeper import Keeper, KeptExporter
from cq.observers.export.queue import BUCKETS
from cq.observers.export.task import ExportTask
from cq.observers.scheduling.task import Task
from cq.store.api import Database, Transaction
from cq.store.transact import transact


def kept_tasks(
    db: Database,
    config: QueueConfig,
    observer: ObserverConfig,
    exporter: KeptExporter,
    *,
    width: int | None = None,
) -> list[Task]:
    """The tasks for an export queue that an observer of a queue fills: the keeper first, then one for each bucket.

    Notifies the keeper, so that it checks both databases when a worker starts.

    Args:
        db: a database of either store.
        config: the observed queue; the export queue has the same name.
        observer: the observer that fills the export queue.
        exporter: shared by all tasks.
        width: how many buckets are exported at once; None: all.
    """
    keys = ExportKeys(config.name)
    transact(db, lambda tr: wake_keeper(tr, keys))
    keeper = Keeper(
        db,
        config.name,
        exporter,
        observer.generation,
        lambda tr: current_generation(tr, config.name, observer.name) == observer.generation,
    )
    buckets = [
        ExportTask(db, config.name, bucket, exporter, generation=observer.generation, width=width)
        for bucket in range(BUCKETS)
    ]
    return [keeper, *buckets]


def exporter_tasks(db: Database, name: str, exporter: Exporter) -> list[Task]:
    """The tasks for an export queue with an application's own exporter: one for each bucket."""
    return [ExportTask(db, name, bucket, exporter) for bucket in range(BUCKETS)]


def wake_keeper(tr: Transaction, keys: ExportKeys) -> None:
    """Notify the export's keeper, so that it checks all buckets again."""
    tr.set_versionstamped_value(keys.keeper, INCOMPLETE_VERSIONSTAMP)
