"""The observers that a queue can have without code of the application: what makes them, and what works for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cq.app import Factory
from cq.changes import ObserverSpec
from cq.config import ObserverConfig, QueueConfig
from cq.configuring import put_observer
from cq.observers import export, top
from cq.observers.exports import export_tasks
from cq.observers.jobs import Task
from cq.observers.publisher import publishers
from cq.store.api import Database

FACTORIES: Final[Mapping[str, Factory]] = {"top": top.observer, "export": export.observer}
"""{kind: what makes the observer's function}."""

TASKS: Final[Mapping[str, Callable[[Database, QueueConfig, ObserverConfig], Sequence[Task]]]] = {
    "top": publishers,
    "export": export_tasks,
}
"""{kind: what makes the tasks of a worker}."""


def put_built_in(db: Database, config: QueueConfig, observer: ObserverSpec) -> QueueConfig:
    """`cq.put_observer` for one of these kinds, after a look at whether it suits the queue.

    Raises `InvalidConfiguration` when it does not: a top of values that are no numbers, say.
    """
    FACTORIES[observer.name](config, observer.settings, 0)
    return put_observer(db, config.name, observer)


def observer_tasks(db: Database, config: QueueConfig) -> list[Task]:
    """The tasks that a queue's observers need beside its passes."""
    return [
        task
        for observer in config.observers
        if observer.name in TASKS
        for task in TASKS[observer.name](db, config, observer)
    ]
