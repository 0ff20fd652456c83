"""The observers that a queue can have without code of the application: what makes them, and what works for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cq.app import Factory
from cq.config import ObserverConfig, QueueConfig
from cq.observers import top
from cq.observers.jobs import Task
from cq.observers.publisher import publishers
from cq.store.api import Database

FACTORIES: Final[Mapping[str, Factory]] = {"top": top.observer}
"""{kind: what makes the observer's function}."""

TASKS: Final[Mapping[str, Callable[[Database, QueueConfig, ObserverConfig], list[Task]]]] = {
    "top": publishers
}
"""{kind: what makes the tasks of a worker}."""


def observer_tasks(db: Database, config: QueueConfig) -> list[Task]:
    """The tasks that a queue's observers need beside its passes."""
    return [
        task
        for observer in config.observers
        if observer.name in TASKS
        for task in TASKS[observer.name](db, config, observer)
    ]
