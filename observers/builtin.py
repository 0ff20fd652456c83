"""The built-in observers, which need no code of the application: their factories, and their tasks for workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cq.app import Factory
from cq.config.queue import TOTALS, ObserverConfig, QueueConfig
from cq.errors import InvalidConfiguration
from cq.observer import ObserverFunction, ObserverSpec
from cq.observers import distinct, window_totals
from cq.observers.export.queue import add_changes
from cq.observers.export.spec import EXPORTERS, export_spec
from cq.observers.exporters import export_tasks
from cq.observers.feeds import observer as feedobserver
from cq.observers.feeds.observer import feed_spec
from cq.observers.forward import observer as forward
from cq.observers.forward.observer import forward_spec
from cq.observers.kafka import observer as kafka
from cq.observers.kafka.observer import kafka_spec
from cq.observers.scheduling.members import ROLES
from cq.observers.scheduling.task import Task
from cq.observers.top import index
from cq.observers.top.publisher import publishers
from cq.observers.webhook import observer as webhook
from cq.observers.webhook.observer import webhook_spec
from cq.store.api import Database

_Tasks = Callable[[Database, QueueConfig, ObserverConfig], Sequence[Task] | None]
_TASKS: Final[Mapping[str, tuple[str, _Tasks]]] = {
    "top": ("publish", publishers),
    **dict.fromkeys(EXPORTERS, ("export", export_tasks)),
}
"""{kind: (role, function)}. The function returns a worker's tasks: an empty list if this process cannot do them,
None if the observer needs no tasks."""


def _checked(make: Factory, kind: str, spec: Callable[..., ObserverSpec]) -> Factory:
    """Return the factory of a kind, for settings of any process: it accepts only settings that `spec` can return."""

    def checked(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
        try:
            fits = spec(**settings).settings == settings
        except (TypeError, AttributeError):  # unknown settings, or settings of other types
            fits = False
        if not fits:
            raise InvalidConfiguration(
                f"the observer {kind!r} of queue {config.name!r} has settings that are invalid for its kind"
            )
        return make(config, settings, generation)

    return checked


def _top(score: bool, group: bool | str, **settings: Any) -> ObserverSpec:
    # Without functions: `index.observer` says if it lacks those of an application.
    spec = index.top(**settings)
    by = group if group == index.LAST_PART else bool(group)
    return replace(spec, settings={**spec.settings, "score": bool(score), "group": by})


FACTORIES: Final[Mapping[str, Factory]] = {
    "top": _checked(index.observer, "top", _top),
    "export": _checked(add_changes("export"), "export", export_spec),
    "forward": _checked(forward.observer, "forward", forward_spec),
    webhook.NAME: _checked(add_changes(webhook.NAME), webhook.NAME, webhook_spec),
    kafka.NAME: _checked(add_changes(kafka.NAME), kafka.NAME, kafka_spec),
    "feed": _checked(feedobserver.observer, "feed", feed_spec),
    distinct.NAME: _checked(distinct.observer, distinct.NAME, distinct.distinct),
    TOTALS: window_totals.observer,
}
"""{kind: factory of the observer's function}; they raise `InvalidConfiguration` for invalid settings."""


def observer_tasks(
    db: Database, config: QueueConfig, roles: Collection[str] = ROLES
) -> dict[str, Sequence[Task]]:
    """Return {role: tasks} that a queue's observers need in addition to its passes, of these roles.

    A role without tasks is one that this process lacks something for: other workers may do its tasks.
    """
    found: dict[str, Sequence[Task]] = {}
    for observer in config.observers:
        role, tasks = _TASKS.get(observer.name, ("", None))
        if tasks is None or role not in roles or not observer.is_built_in:
            continue
        needed = tasks(db, config, observer)
        if needed is not None:
            found[role] = needed
    return found
