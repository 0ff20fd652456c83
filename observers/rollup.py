"""The roll-up of a level into the next one: each change of a minute changes its hour by the difference.

A pass over a level adds the differences to the next level in its own transaction. So a longer period has the
combination of its shorter periods, exactly, even if workers crash. Only updates count: a period that expires, or is
purged, stays in the longer period.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cq.combiners import built_in_combiner, updates_between
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import level_key
from cq.errors import InvalidConfiguration
from cq.keys import QueueKeys
from cq.observer import UPDATES, Change, ObserverFunction
from cq.queue.adds import write_updates
from cq.store.api import Transaction


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the observer's function; raises `InvalidConfiguration` unless the queue is a level to derive from."""
    into, period = settings.get("into"), settings.get("period")
    combiner = built_in_combiner(config.combiner.name)
    if (
        config.level_of is None
        or combiner is None
        or combiner.difference is None
        or settings.keys() != {"into", "period"}
        or type(into) is not str
        or type(period) is not int
        or period < 1
    ):
        raise InvalidConfiguration(
            f"queue {config.name!r} is not a level of a roll-up that workers can derive from"
        )

    def derive(tr: Transaction, changes: list[Change]) -> None:
        updates = []
        for change in changes:
            if change.cause != UPDATES:
                continue
            *parts, start = change.key
            key = level_key(tuple(parts), start // period * period)
            updates += [(key, update) for update in updates_between(combiner, change.new, change.old)]
        if updates:
            write_updates(tr, QueueKeys(into), read_config(tr, into), updates, None, due=None)

    return derive
