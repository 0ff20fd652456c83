"""Configurations as other versions of cq store them."""

from __future__ import annotations

from typing import Any

from cq.config.queue import QueueConfig, read_config, write_config
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.store.transact import transact


def needs_another(db: Any, name: str) -> None:
    """Store what a later version of cq stores that has given the queue a feature."""
    config = transact(db, lambda tr: read_config(tr, name))
    store(db, name, {**as_stored(config), "format": 2, "features": ["time travel"], "times": [3]})


def store(db: Any, name: str, stored: dict[str, Any]) -> None:
    """Change the configuration, as another version of cq does."""

    def change(tr: Any) -> None:
        write_config(tr, read_config(tr, name))
        tr.set(QueueKeys(name).config, codec.encode(stored))

    transact(db, change)


def as_stored(config: QueueConfig) -> dict[str, Any]:
    found = codec.decode(config.to_bytes())
    assert isinstance(found, dict)
    return found
