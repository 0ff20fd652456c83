"""The observer that exports a queue to a topic of Kafka, its settings, and the tasks of a worker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cq.config.queue import ObserverConfig, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.observer import ObserverFunction, ObserverSpec
from cq.observers.export.queue import add_changes
from cq.observers.export.spec import check_alone, checked_env
from cq.observers.kafka.client import KafkaTopic
from cq.observers.kafka.exporter import KafkaExporter
from cq.observers.scheduling.task import Task
from cq.observers.sink.tasks import BatchLimits, sink_tasks
from cq.store.api import Database

NAME: Final = "kafka"
"""The observer's name."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_KAFKA"
"""The default environment variable of the brokers' addresses."""
LIMITS: Final = BatchLimits(bytes=500_000, entries=5_000)
"""Limits of a batch, far below the 100,000 messages that a client of Kafka holds."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def kafka_spec(topic: str, *, url_env: str = DEFAULT_ENV) -> ObserverSpec:
    """The observer that exports a queue to a topic of Kafka, for `cq.configure(..., observers=[...])`.

    Args:
        topic: the topic's name. The topic must exist.
        url_env: the environment variable in which workers find the addresses of brokers, separated by commas. If the
            variable of this name with `_CONFIG` is set, it names a file with settings of the client, such as
            passwords.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidConfiguration(
            "expected the name of a topic, 1 to 249 letters, digits, dots, hyphens and underscores, got: "
            f"{brief(topic)}"
        )
    settings = {"topic": topic, "url_env": checked_env(url_env, DEFAULT_ENV)}
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: check_alone(config, NAME))


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """A change observer that adds every change of a queue to the export queue of the same name."""
    return add_changes(config, NAME, generation)


def kafka_tasks(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for a queue's topic, see `sink_tasks`."""
    return sink_tasks(db, config, observer, kafka_exporter(db, config, observer), LIMITS)


def kafka_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> KafkaExporter:
    """The exporter that appends the changes of a queue to its topic."""
    topic = KafkaTopic(observer.settings["topic"], observer.settings["url_env"])
    return KafkaExporter(ensure_store_id(db), config.name, topic)
