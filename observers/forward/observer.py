"""The observer that forwards: it turns the changes of a queue into updates of a queue in another store.

The receiving queue can combine the updates of many stores. In the pass's transaction, the observer adds the update that
a change means for the total to the export queue of the queue's name: for a sum, the difference between new and old; for
idempotent combiners such as `maximum` and `distinct`, the new value. Workers apply the updates to the receiving queue,
see `cq.observers.forward.exporter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cq.combiners import BUILT_IN, Combiner, built_in_combiner, updates_between
from cq.config.queue import Named, ObserverConfig, QueueConfig
from cq.config.store_id import ensure_store_id
from cq.errors import InvalidConfiguration
from cq.keys import check_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.observers.export.queue import ExportQueue
from cq.observers.export.spec import check_alone, checked_env
from cq.observers.forward.exporter import ForwardExporter
from cq.store.api import Database, Transaction

NAME: Final = "forward"
"""The observer's name."""
VERSION: Final = 1
DEFAULT_ENV: Final = "CQ_FORWARD_URL"
"""The default environment variable of the receiving store's URL."""


def forward_spec(into: str | None = None, *, url_env: str = DEFAULT_ENV) -> ObserverSpec:
    """The observer that forwards a queue into a queue of another store, for `cq.configure(..., observers=[...])`.

    Args:
        into: the name of the receiving queue; None: the queue's own name.
        url_env: the environment variable in which workers find the URL of the receiving store.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings: dict[str, Any] = {"url_env": checked_env(url_env, DEFAULT_ENV)}
    if into is not None:
        settings["into"] = check_name(into)
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: observer(config, settings, 0))


def _can_forward(combiner: Combiner) -> bool:
    return combiner.takes_delete or combiner.difference is not None


def _updates(combiner: Combiner, change: Change) -> list[Any]:
    """The updates for a change; None among them is the `DELETE` of a combiner that takes it."""
    return [change.new] if combiner.takes_delete else updates_between(combiner, change.new, change.old)


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """A change observer that adds the updates for changes to the export queue of the queue's name.

    Raises `InvalidConfiguration` if the queue's combiner is not built in or its changes cannot be forwarded.
    """
    check_alone(config, NAME)
    combiner = config.combiner
    built_in = built_in_combiner(combiner.name)
    if built_in is None or not _can_forward(built_in) or Named(built_in.name, built_in.version) != combiner:
        raise InvalidConfiguration(
            f"queue {config.name!r} combines by {combiner}, whose changes cannot be forwarded: expected one of "
            f"{', '.join(name for name, each in BUILT_IN.items() if _can_forward(each))}"
        )
    queue = ExportQueue(config.name, generation=generation)

    def forward(tr: Transaction, changes: list[Change]) -> None:
        pairs = [(change.key, update) for change in changes for update in _updates(built_in, change)]
        queue.add_many(tr, pairs)

    return forward


def forward_exporter(db: Database, config: QueueConfig, observer: ObserverConfig) -> ForwardExporter:
    """The exporter that applies the updates of a queue to the receiving queue."""
    return ForwardExporter(
        config,
        store=ensure_store_id(db),
        generation=observer.generation,
        into=observer.settings.get("into", config.name),
        url_env=observer.settings["url_env"],
    )
