"""The totals of a window: each change of a slice changes the total of its key by the difference.

A pass over the slices adds the differences to the queue of totals in its own transaction. A slice that leaves the
window is deleted, which subtracts it. So a total is the combination of the slices that are stored, exactly, even if
workers crash, as soon as what is queued is combined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.combiners import built_in_combiner, updates_between
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import key_without_time
from cq.errors import InvalidConfiguration
from cq.observer import PURGE, Change, ObserverFunction
from cq.queue.adds import write_updates
from cq.queue.limits import admitted
from cq.store.api import Transaction


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the observer's function; raises `InvalidConfiguration` unless the queue has slices to subtract."""
    into, combiner = settings.get("into"), built_in_combiner(config.combiner.name)
    is_slices = config.level_of is not None and config.level_of.is_slices
    if not is_slices or combiner is None or settings.keys() != {"into"} or type(into) is not str:
        raise InvalidConfiguration(f"queue {config.name!r} has no slices of a window that can be subtracted")

    def subtract_and_add(tr: Transaction, changes: list[Change]) -> None:
        totals = read_config(tr, into)
        updates = []
        for change in changes:
            if change.cause == PURGE:
                continue  # the totals are purged, too
            key = key_without_time(totals.key, change.key)
            updates += [(key, update) for update in updates_between(combiner, change.new, change.old)]
        if updates:
            with admitted():
                write_updates(tr, totals, updates)

    return subtract_and_add
