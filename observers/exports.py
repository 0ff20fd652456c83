"""The export of a queue as it is configured: which table, in which database, and the tasks that do the work.

The queue's configuration holds names only: of the table, and of the environment variable that has the database's URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cq.backfill import current_generation
from cq.changes import ObserverSpec
from cq.config import ObserverConfig, QueueConfig, read_config
from cq.errors import InvalidConfiguration
from cq.exportkeys import ExportKeys
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.observers.export import BUCKETS
from cq.observers.exporting import ExportTask
from cq.observers.sql import SqlExporter
from cq.observers.sqlengine import DEFAULT_ENV, ReportingDatabase
from cq.observers.sqlkeeper import Keeper
from cq.observers.sqllayouts import declared_columns
from cq.observers.sqltable import DefaultLayout, TableDefinition, check_identifier
from cq.store.api import Database, Transaction
from cq.store.transact import transact
from cq.storeid import ensure_store_id

NAME: Final = "export"
"""The observer's name."""
VERSION: Final = 1


def export_spec(
    table: str, *, schema: str | None = None, url_env: str = DEFAULT_ENV, columns: str | None = None
) -> ObserverSpec:
    """The observer that exports a queue into a table: for `cq.configure(..., observers=[...])`.

    Args:
        table: its name; taken as it is, in quotes.
        schema: the schema it is in, None for the database's default one.
        url_env: the environment variable that has the URL of the reporting database, wherever workers run.
        columns: what `declare_columns` returned, None for `key` and `value`.

    Raises `InvalidConfiguration`.
    """
    settings: dict[str, Any] = {"table": check_identifier(table), "url_env": _checked_env(url_env)}
    if schema is not None:
        settings["schema"] = check_identifier(schema)
    if columns is not None:
        settings["columns"] = columns
    return ObserverSpec(NAME, VERSION, settings)


def _checked_env(name: str) -> str:
    if not name.isidentifier():
        # Not shown: somebody may have given the URL itself, with its password.
        raise InvalidConfiguration("expected the name of an environment variable, such as CQ_REPORTING_URL")
    return name


@dataclass(frozen=True)
class Export:
    """A queue's export: its configuration, the reporting database, the table, and the id of the store."""

    config: QueueConfig
    observer: ObserverConfig
    reporting: ReportingDatabase
    definition: TableDefinition
    store: bytes

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.config.name

    def exporter(self) -> SqlExporter:
        """A new exporter into the table."""
        return SqlExporter(self.reporting, self.definition, self.store)


def find_export(db: Database, queue: str, *, url_env: str | None = None) -> Export:
    """The export that a queue is configured with.

    Args:
        db: a database of either store.
        queue: its name.
        url_env: an environment variable to take the URL from, None for the one configured.

    Raises `QueueNotConfigured`, `InvalidConfiguration` when the queue has no export, `ExportFailed` when this process
    lacks the columns that it asks for.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    observer = next((each for each in config.observers if each.name == NAME), None)
    if observer is None:
        raise InvalidConfiguration(
            f"queue {queue!r} is not exported: run `cq configure {queue} --export TABLE` first"
        )
    return _export(db, config, observer, url_env)


def _export(
    db: Database, config: QueueConfig, observer: ObserverConfig, url_env: str | None = None
) -> Export:
    settings: Mapping[str, Any] = observer.settings
    reporting = ReportingDatabase(env=url_env or settings["url_env"])
    columns = settings.get("columns")
    layout = DefaultLayout(config.key, config.value) if columns is None else declared_columns(columns)
    definition = TableDefinition(settings["table"], layout, settings.get("schema"))
    return Export(config, observer, reporting, definition, ensure_store_id(db))


def export_tasks(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[ExportTask | Keeper]:
    """The tasks of a worker for a queue's export: one for each bucket, and the keeper, which is to look at it now."""
    export = _export(db, config, observer)
    exporter = export.exporter()
    keys = ExportKeys(config.name)
    transact(db, lambda tr: wake_keeper(tr, keys))
    keeper = Keeper(
        db,
        config.name,
        exporter,
        observer.generation,
        lambda tr: current_generation(tr, config.name, NAME) == observer.generation,
    )
    buckets = [
        ExportTask(db, config.name, bucket, exporter, generation=observer.generation)
        for bucket in range(BUCKETS)
    ]
    return [keeper, *buckets]


def wake_keeper(tr: Transaction, keys: ExportKeys) -> None:
    """Have the export's keeper look at everything again."""
    tr.set_versionstamped_value(keys.keeper, INCOMPLETE_VERSIONSTAMP)
