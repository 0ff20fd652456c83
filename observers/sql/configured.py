"""The configured export of a queue: its table, its database, and the tasks of a worker.

Functions here import SQLAlchemy when they need it: commands without exports must start without that delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.config.store_id import ensure_store_id
from cq.errors import InvalidConfiguration, NotInStore
from cq.keys.export import ExportKeys
from cq.observers.export.batch import ExportFailed
from cq.observers.export.spec import NAME
from cq.observers.scheduling.task import Task
from cq.store.api import Database
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.observers.sql.engine import ReportingDatabase
    from cq.observers.sql.table import TableDefinition


@dataclass(frozen=True)
class Export:
    """A queue's export: the configuration, the reporting database, the table, and the store's id."""

    config: QueueConfig
    observer: ObserverConfig
    reporting: ReportingDatabase
    definition: TableDefinition
    store: bytes

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.config.name


def find_export(db: Database, queue: str, *, url_env: str | None = None) -> Export:
    """Read the configured export of a queue.

    Args:
        db: a database of either store.
        queue: the queue's name.
        url_env: the environment variable with the URL; None: the configured one.

    Raises:
        QueueNotConfigured: there is no such queue.
        InvalidConfiguration: the queue has no export.
        ExportFailed: this process lacks the columns that the export uses.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    observer = next((each for each in config.observers if each.name == NAME), None)
    if observer is None:
        raise NotInStore(f"queue {queue!r} is not exported: run `cq configure {queue} --export TABLE` first")
    return _export(db, config, observer, url_env)


def _export(
    db: Database, config: QueueConfig, observer: ObserverConfig, url_env: str | None = None
) -> Export:
    from cq.observers.sql.engine import ReportingDatabase
    from cq.observers.sql.table import DefaultLayout, TableDefinition, declared_columns

    settings: Mapping[str, Any] = observer.settings
    reporting = ReportingDatabase(env=url_env or settings["url_env"])
    columns = settings.get("columns")
    layout = DefaultLayout(config.key, config.value) if columns is None else declared_columns(columns)
    definition = TableDefinition(settings["table"], layout, settings.get("schema"))
    return Export(config, observer, reporting, definition, ensure_store_id(db))


def export_tasks(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for a queue's export: the keeper, which is notified now, and one for each bucket.

    If this process lacks the export's columns, or the reporting database's URL or driver, returns no tasks and stores
    the failure: other workers may have them. Other queues, and this queue's passes, are not affected.
    """
    from cq.observers.export.failure_note import FailureNote
    from cq.observers.export.task import kept_tasks
    from cq.observers.sql.exporter import SqlExporter

    try:
        export = _export(db, config, observer)
        export.reporting.check_url()
        exporter = SqlExporter(export.reporting, export.definition, export.store)
    except (ExportFailed, InvalidConfiguration) as error:
        FailureNote(db, ExportKeys(config.name), None).give_up(f"export of queue {config.name!r}", error)
        return []
    width = 1 if export.reporting.serializes_writes else None
    return kept_tasks(db, config, observer, exporter, width=width)
