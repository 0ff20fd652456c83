"""The settings of the observer that exports a queue to a webhook, and its exporter."""

from __future__ import annotations

from typing import Final

from cq.config.queue import ObserverConfig, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.observer import ObserverSpec
from cq.observers.export.spec import check_alone, checked_env
from cq.observers.webhook.client import HttpReceiver
from cq.observers.webhook.exporter import WebhookExporter
from cq.observers.webhook.message import Source
from cq.store.api import Database

NAME: Final = "webhook"
"""The observer's name."""
VERSION: Final = 1
DEFAULT_URL_ENV: Final = "CQ_WEBHOOK_URL"
"""The default environment variable of the receiver's URL."""
DEFAULT_SECRET_ENV: Final = "CQ_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
"""The default environment variable of the secret."""


def webhook_spec(url_env: str = DEFAULT_URL_ENV, *, secret_env: str = DEFAULT_SECRET_ENV) -> ObserverSpec:
    """The observer that exports a queue to a webhook, for `cq.configure(..., observers=[...])`.

    Args:
        url_env: the environment variable in which workers find the receiver's URL.
        secret_env: the environment variable with the secret that signs requests. If it is not set, the variable of
            this name with `_FILE` names a file with the secret.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings = {
        "url_env": checked_env(url_env, DEFAULT_URL_ENV),
        "secret_env": checked_env(secret_env, DEFAULT_SECRET_ENV),
    }
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: check_alone(config, NAME))


def webhook_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> WebhookExporter:
    """The exporter that sends the changes of a queue to its webhook."""
    receiver = HttpReceiver(observer.settings["url_env"], observer.settings["secret_env"])
    return WebhookExporter(Source(ensure_store_id(db), config.name), observer.generation, receiver)
