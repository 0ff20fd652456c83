"""The exporters of all configured exports, their tasks for workers, and for operators, the exports to sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.errors import NotInStore
from cq.observers.export import spec as sql
from cq.observers.export.batch import KeptExporter
from cq.observers.export.task import kept_tasks
from cq.observers.forward import observer as forward
from cq.observers.kafka import observer as kafka
from cq.observers.scheduling.task import Task
from cq.observers.sink.exporter import SinkExporter
from cq.observers.sink.operate import Sink
from cq.observers.sql.configured import sql_exporter
from cq.observers.webhook import observer as webhook
from cq.store.api import Database, TransactionRead
from cq.store.transact import transact

_SINKS: Final[Mapping[str, Callable[[Database, QueueConfig, ObserverConfig], SinkExporter]]] = {
    webhook.NAME: webhook.webhook_exporter,
    kafka.NAME: kafka.kafka_exporter,
}
_EXPORTERS: Final[Mapping[str, Callable[[Database, QueueConfig, ObserverConfig], KeptExporter]]] = {
    sql.NAME: sql_exporter,
    forward.NAME: forward.forward_exporter,
    **_SINKS,
}
"""{name of the observer: function that makes its exporter}."""


def export_tasks(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for an export of a queue, see `kept_tasks`."""
    return kept_tasks(db, config, observer, partial(_EXPORTERS[observer.name], db, config, observer))


@contextmanager
def opened_sink(db: Database, queue: str, *, url_env: str | None = None) -> Iterator[Sink]:
    """The export of a queue to its webhook or topic; closes its connections at exit.

    Args:
        db: a database of either store.
        queue: the queue's name.
        url_env: the environment variable with the URL or the addresses; None: the configured one.

    Raises `QueueNotConfigured`, and `NotInStore` if the queue has neither a webhook nor a topic.
    """
    config = transact(db, lambda tr: read_config(tr.snapshot, queue))
    observer = _observer_of(config)
    if observer is None:
        raise NotInStore(
            f"queue {queue!r} has no webhook and no topic: run `cq configure {queue}` with --webhook or --kafka first"
        )
    if url_env is not None:
        observer = replace(observer, settings={**observer.settings, "url_env": url_env})
    exporter = _SINKS[observer.name](db, config, observer)
    try:
        yield Sink(db, config, observer, exporter)
    finally:
        exporter.close()


def has_sink(tr: TransactionRead, queue: str) -> bool:
    """Whether a queue has a webhook or a topic of Kafka; raises `QueueNotConfigured`."""
    return _observer_of(read_config(tr, queue)) is not None


def _observer_of(config: QueueConfig) -> ObserverConfig | None:
    return next((each for each in config.observers if each.name in _SINKS), None)
