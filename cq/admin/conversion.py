"""Changes of the version of a queue's combiner, while the queue is in use.

The change begins a new generation of the shape, so that adds go to new buckets. Workers with the former version combine
what was queued before, as after a rebucket. Not until the former shape is empty, and nothing is set aside, do workers
with the new version begin. If the new version has a function `convert`, passes first convert the values of each bucket,
in hash order, piece by piece, before they combine any update of it.
"""

from __future__ import annotations

from dataclasses import replace

from cq.admin.backfill import read_states
from cq.admin.levels import with_levels
from cq.admin.rebucketing import refuse_unless_settled
from cq.combiners import Combiner
from cq.config.parts import Shape
from cq.config.queue import (
    Conversion,
    Named,
    QueueConfig,
    notify_all,
    read_config,
    write_config,
)
from cq.errors import InvalidConfiguration
from cq.queue.bucket_state import needs_conversion
from cq.store.api import Transaction, TransactionRead
from cq.store.transact import transactional


def is_raised(config: QueueConfig, combiner: Combiner | None) -> bool:
    """Whether a combiner is a later version of the queue's; an earlier one is none, as old processes may configure."""
    wanted = config.combiner
    return combiner is not None and combiner.name == wanted.name and combiner.version > wanted.version


def switch(tr: Transaction, current: QueueConfig, combiner: Combiner) -> QueueConfig:
    """Change a queue and its levels to another version of their combiner; returns the queue's new configuration.

    Raises `NotNow` while another change of the queue is in progress, and `InvalidConfiguration` for a level of a
    roll-up.
    """
    current.refuse_level("change the combiner of")
    for each in with_levels(tr, current):
        refuse_unless_settled(tr, each)
        changed = _switched(each, combiner)
        notify_all(tr, each)
        write_config(tr, changed)
    return _switched(current, combiner)


def _switched(config: QueueConfig, combiner: Combiner) -> QueueConfig:
    return replace(
        config,
        combiner=Named(combiner.name, combiner.version),
        takes_delete=combiner.takes_delete,
        generation=config.generation + 1,
        former=Shape(config.generation, config.buckets),
        backfilled_until=config.observer_generations,
        conversion=Conversion(config.combiner.name, config.combiner.version, combiner.convert is not None),
    )


def refuse_other_changes(before: QueueConfig, after: QueueConfig) -> None:
    """Raises `InvalidConfiguration` if other settings change together with the combiner.

    The last reports of the former version go to the former observers.
    """
    if before != after:
        raise InvalidConfiguration(
            f"the combiner of queue {before.name!r} and its other settings, such as observers, change one after the "
            "other: configure it with observers=None first, and again when its queued updates are combined; "
            "`cq configure --app` does both"
        )


@transactional
def finish_conversion(tr: Transaction, name: str) -> bool:
    """Note that all values are converted, if they are; returns whether they were.

    The change of a queue ends after those of its levels, as reads of the queue combine values of a level. Any number of
    workers may call this at any time.
    """
    config = read_config(tr, name)
    if config.conversion is None or config.former is not None:
        return False
    # Snapshot reads are safe: a converted bucket stays converted.
    if any(needs_conversion(config, state) for state in read_states(tr.snapshot, config)):
        return False
    if any(read_config(tr, level).conversion is not None for level in config.level_names):
        return False
    write_config(tr, replace(config, conversion=None))
    return True


def conversion_progress(tr: TransactionRead, config: QueueConfig) -> int | None:
    """The number of buckets whose values are converted; None without a conversion in progress."""
    if config.conversion is None or config.former is not None:
        return None
    return sum(not needs_conversion(config, state) for state in read_states(tr, config))
