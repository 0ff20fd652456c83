"""Forwarding: the changes of a queue become updates of a queue in another store, which adds up those of many.

The observer adds what each change means for a total to the export queue of the queue's name, in the pass's transaction:
of a sum the difference between new and old. Workers apply it to the receiving queue, see
`cq.observers.forward.exporter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from cq.combiners import BUILT_IN
from cq.config.queue import Named, ObserverConfig, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.errors import InvalidConfiguration
from cq.keys.export import ExportKeys
from cq.observer import Change, ObserverFunction
from cq.observers.export.errors import ExportFailed
from cq.observers.export.failure_note import FailureNote
from cq.observers.export.queue import ExportQueue
from cq.observers.export.spec import check_alone
from cq.observers.export.tasks import kept_tasks
from cq.observers.forward.exporter import ForwardExporter
from cq.observers.forward.spec import NAME
from cq.observers.scheduling.task import Task
from cq.store.api import Database, Transaction


def _negative(value: Any) -> Any:
    return value.copy_negate() if isinstance(value, Decimal) else -value  # which would round a decimal


def _difference(change: Change) -> Any:
    """Of sums, also of those of decimals, exactly; a deletion is the sum 0."""
    added = [] if change.new is None else [change.new]
    taken = [] if change.old is None else [_negative(change.old)]
    return BUILT_IN["sum"].combine(change.key, added + taken)


def _differences(change: Change) -> Any:
    """Of dicts of counts."""
    taken = {item: _negative(count) for item, count in (change.old or {}).items()}
    return BUILT_IN["counter"].combine(change.key, [change.new or {}, taken])


def _new_items(change: Change) -> Any:
    """Of sets, which only grow."""
    return (change.new or set()) - (change.old or set()) or None


def _new_value(change: Change) -> Any:
    return change.new


UPDATES: Final[Mapping[str, Callable[[Change], Any]]] = {
    "sum": _difference,
    "counter": _differences,
    "minimum": _new_value,
    "maximum": _new_value,
    "union": _new_items,
    "last": _new_value,
}
"""{combiner: the update of the receiving queue that a change means}; None for none, and of `last` for `DELETE`."""


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """A change observer that adds what changes mean to the export queue of the queue's name.

    Raises `InvalidConfiguration` when the queue's changes cannot be forwarded.
    """
    check_alone(config, NAME)
    combiner = config.combiner
    built_in = BUILT_IN.get(combiner.name)
    update = UPDATES.get(combiner.name)
    if update is None or built_in is None or Named(built_in.name, built_in.version) != combiner:
        raise InvalidConfiguration(
            f"queue {config.name!r} combines by {combiner}, whose changes cannot be forwarded: expected one of "
            f"{', '.join(UPDATES)}"
        )
    queue = ExportQueue(config.name, generation=generation)

    def forward(tr: Transaction, changes: list[Change]) -> None:
        updates = [(change.key, update(change)) for change in changes]
        queue.add_many(tr, [each for each in updates if config.takes_delete or each[1] is not None])

    return forward


def forward_tasks(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for a queue that is forwarded: the keeper, and one for each bucket.

    None when this process lacks the receiving store's URL: other workers may have it.
    """
    exporter = forward_exporter(db, config, observer)
    try:
        exporter.check_url()
    except ExportFailed as error:
        FailureNote(db, ExportKeys(config.name), None).give_up(error)
        return []
    return kept_tasks(db, config, observer, exporter)


def forward_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> ForwardExporter:
    """What applies the changes of a queue to the receiving queue."""
    return ForwardExporter(
        config,
        store=ensure_store_id(db),
        generation=observer.generation,
        into=observer.settings.get("into", config.name),
        url_env=observer.settings["url_env"],
    )
