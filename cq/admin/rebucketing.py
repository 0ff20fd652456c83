"""Rebucketing: changes the number of a queue's buckets while the queue is in use.

A change of shape begins a new generation. From then on adds write to its buckets: each add has a read conflict on the
shape, so no add commits under the former shape after the change. Passes drain the buckets of the former generation,
including staged updates. A pass over a new bucket first checks, at its read version, that the former buckets that share
hashes with it are empty: so updates are combined in commit order, without loss or repetition. Current values do not
move, as they are stored by hash.
"""

from __future__ import annotations

from dataclasses import replace

from cq.admin.backfill import backfill_progress
from cq.admin.levels import with_levels
from cq.admin.purging import refuse_while_purging
from cq.config.parts import MAX_BUCKETS, Shape
from cq.config.queue import QueueConfig, notify_all, read_config, refuse_while_rebucketing, write_config
from cq.encoding import hashing
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, NotNow
from cq.keys import QueueKeys
from cq.queue.bucket_state import BucketState
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead
from cq.store.transact import transact


def rebucket(db: Database, name: str, buckets: int) -> QueueConfig:
    """Change a queue's number of buckets while adds and workers continue; returns its configuration.

    Its levels change in the same transaction. Workers drain the former buckets. Writes one notification
    for each of these.

    Args:
        db: a database of either store.
        name: the queue.
        buckets: 1 to 4,096. The queue's present number has no effect.

    Raises:
        QueueNotConfigured: there is no such queue.
        InvalidConfiguration: `buckets` is out of range, or the queue is a level.
        NotNow: a rebucketing, a purge or a backfill of the queue is still in progress.
    """
    if type(buckets) is not int or not 1 <= buckets <= MAX_BUCKETS:
        raise InvalidConfiguration(f"expected buckets to be 1 to {MAX_BUCKETS:,}, got: {brief(buckets)}")

    def run(tr: Transaction) -> QueueConfig:
        config = read_config(tr, name)
        config.refuse_level("rebucket")
        changed, *_ = [_rebucket(tr, each, buckets) for each in with_levels(tr, config)]
        return changed

    return transact(db, run)


def _rebucket(tr: Transaction, current: QueueConfig, buckets: int) -> QueueConfig:
    """Change the number of buckets of one queue."""
    if current.buckets == buckets:
        return current
    refuse_unless_settled(tr, current)
    changed = replace(
        current,
        buckets=buckets,
        generation=current.generation + 1,
        former=Shape(current.generation, current.buckets),
        backfilled_until=current.observer_generations,
    )
    notify_all(tr, current)
    write_config(tr, changed)
    return changed


def refuse_unless_settled(tr: Transaction, config: QueueConfig) -> None:
    """Raises `NotNow` while a queue is being rebucketed, converted, backfilled or purged."""
    refuse_while_rebucketing(config)
    if backfilling := backfill_progress(tr.snapshot, config):
        raise NotNow(
            f"a backfill of the observers {', '.join(backfilling)} of queue {config.name!r} is in progress: "
            "run workers, and try again later"
        )
    refuse_while_purging(tr.snapshot, config)


def is_blocked(snapshot: TransactionRead, config: QueueConfig, bucket: int) -> bool:
    """Whether the former shape has queued or staged updates of keys of this bucket."""
    if config.former is None:
        return False
    queue = QueueKeys(config.name)
    generation, buckets = config.former
    others = hashing.overlapping(config.buckets, bucket, buckets)
    states = [snapshot.get(queue.state(generation, other)) for other in others]
    rows = [snapshot.get_range(*queue.rows(generation, other), limit=1) for other in others]
    return any(BucketState.from_bytes(state.value).staged for state in states) or any(
        found.to_list() for found in rows
    )


def finish_rebucket(db: Database, name: str) -> bool:
    """Clear the former shape if it is drained; returns whether it was.

    Any number of workers may call this at any time.
    """
    return transact(db, lambda tr: _finish(tr, name))


def _finish(tr: Transaction, name: str) -> bool:
    config = read_config(tr, name)
    if config.former is None:
        return False
    former = QueueKeys(name).of_generation(config.former.generation)
    # Snapshot reads are safe: no add commits under the former shape any more, and an empty bucket stays empty.
    rows = tr.snapshot.get_range(*former.rows, limit=1)
    states = tr.snapshot.get_range(*former.states, streaming_mode=WANT_ALL)
    if rows.to_list() or any(BucketState.from_bytes(row.value).staged for row in states):
        return False
    finished = replace(config, former=None)
    if config.conversion is not None:
        if is_fed_by_former(tr, config):
            return False
        # Updates set aside by the former version are added to the former shape again. If there are none while nothing
        # is queued there, none will be.
        if tr.snapshot.get_range(*QueueKeys(name).aside(), limit=1).to_list():
            return False
        if not config.conversion.converts:
            finished = replace(finished, conversion=None)
        notify_all(tr, finished)  # so that passes convert the values of each bucket
    for bounds in former:
        tr.clear_range(*bounds)
    write_config(tr, finished)
    return True


def is_fed_by_former(tr: Transaction, config: QueueConfig) -> bool:
    """Whether passes over the former shape of a level's queue may still add updates to that of the level."""
    level = config.level_of
    return level is not None and read_config(tr, level.queue).former is not None
