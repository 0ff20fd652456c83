"""The settings of the observer that exports a queue to a topic of Kafka, and its exporter."""

from __future__ import annotations

import re
from typing import Final

from cq.config.queue import ObserverConfig, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.observer import ObserverSpec
from cq.observers.export.spec import check_alone, checked_env
from cq.observers.kafka.client import KafkaTopic
from cq.observers.kafka.exporter import KafkaExporter
from cq.store.api import Database

NAME: Final = "kafka"
"""The observer's name."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_KAFKA"
"""The default environment variable of the brokers' addresses."""
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


def kafka_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> KafkaExporter:
    """The exporter that appends the changes of a queue to its topic."""
    topic = KafkaTopic(observer.settings["topic"], observer.settings["url_env"])
    return KafkaExporter(ensure_store_id(db), config.name, topic)
