"""The configured export of a queue: its table, its database, and its exporter.

Functions here import SQLAlchemy when they need it: commands without exports must start without that delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.config.store_id import ensure_store_id
from cq.errors import NotInStore
from cq.observers.export.spec import NAME
from cq.store.api import Database
from cq.store.transact import transact

if TYPE_CHECKING:
    from cq.observers.sql.engine import ReportingDatabase
    from cq.observers.sql.exporter import SqlExporter
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


def sql_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> SqlExporter:
    """The exporter into the table of a queue; raises `ExportFailed` if this process lacks the export's columns."""
    from cq.observers.sql.exporter import SqlExporter

    export = _export(db, config, observer)
    return SqlExporter(export.reporting, export.definition, export.store)
