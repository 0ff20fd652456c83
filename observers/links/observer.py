"""The observer that a link is: it adds the changes of a queue to the link's log, in the transaction of the pass.

A link to another queue gets the update that a change means for the total: for a sum, the difference between new and
old; for idempotent combiners such as `maximum` and `distinct`, the new value. All others get the new value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.combiners import Combiner, updates_between
from cq.config.queue import QueueConfig
from cq.observer import Change, ObserverFunction
from cq.observers.links.log import ExportQueue
from cq.observers.links.spec import forwarded_combiner, kind_of_link, link_name
from cq.store.api import Transaction


def link_observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """The observer of a link; raises `InvalidConfiguration` for settings that no link has."""
    name = next(each.name for each in config.observers if each.generation == generation)
    kind = kind_of_link(config.name, name, settings)
    log = ExportQueue(config.name, link=link_name(name), generation=generation)
    combiner = forwarded_combiner(config) if kind == "queue" else None

    def send(tr: Transaction, changes: list[Change]) -> None:
        if combiner is None:
            log.add_many(tr, [(change.key, change.new) for change in changes])
        else:
            pairs = [(change.key, update) for change in changes for update in _updates(combiner, change)]
            log.add_many(tr, pairs)

    return send


def _updates(combiner: Combiner, change: Change) -> list[Any]:
    """The updates for a change; None among them is the `DELETE` of a combiner that takes it."""
    return [change.new] if combiner.takes_delete else updates_between(combiner, change.new, change.old)
