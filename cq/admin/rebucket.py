"""Changing the number of a queue's buckets while it is in use: `rebucket`.

A change of shape begins a new generation. Adds go to its buckets from then on: none commits under the old shape after
the change, as each add has a read conflict on it. What was added before is drained from the buckets of the generation
before, staged updates included. A pass over a new bucket first makes sure, at its read version, that nothing is left in
the old buckets that share hashes with it: so updates are combined in commit order, and none is lost or repeated.
Current values do not move, as they are kept by hash.
"""

from __future__ import annotations

from dataclasses import replace

from cq.admin.backfill import backfill_progress
from cq.admin.purge import read_purging
from cq.config.queue import (
    MAX_BUCKETS,
    QueueConfig,
    Shape,
    notify_all,
    read_config,
    refuse_while_rebucketing,
    write_config,
)
from cq.encoding import hashing
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, NotNow
from cq.keys import QueueKeys
from cq.queue.bucket_state import BucketState
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead
from cq.store.transact import transact


def rebucket(db: Database, name: str, buckets: int) -> QueueConfig:
    """Spread a queue over another number of buckets, without stopping anybody; returns its configuration.

    Workers drain the buckets there were. Costs one notification for each of these.

    Args:
        db: a database of either store.
        name: the queue.
        buckets: 1 to 4,096; the number that there is changes nothing.

    Raises:
        QueueNotConfigured: there is no such queue.
        InvalidConfiguration: another number.
        NotNow: the queue is still being rebucketed or purged, or observers are being told of its values.
    """
    if type(buckets) is not int or not 1 <= buckets <= MAX_BUCKETS:
        raise InvalidConfiguration(f"expected buckets to be 1 to {MAX_BUCKETS:,}, got: {brief(buckets)}")
    return transact(db, lambda tr: _rebucket(tr, name, buckets))


def _rebucket(tr: Transaction, name: str, buckets: int) -> QueueConfig:
    current = read_config(tr, name)
    if current.buckets == buckets:
        return current
    refuse_while_rebucketing(current)
    if telling := backfill_progress(tr.snapshot, current):
        raise NotNow(
            f"the observers {', '.join(telling)} of queue {name!r} are still being told of its values: "
            "run workers, and this again later"
        )
    if read_purging(tr.snapshot, current):
        raise NotNow(f"queue {name!r} is still being purged: run workers, and this again later")
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


def is_blocked(snapshot: TransactionRead, config: QueueConfig, bucket: int) -> bool:
    """Whether the shape before has updates, queued or staged, of keys of this bucket."""
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
    """Forget the shape before once it is drained; whether that was so.

    May be called at any time and by any number of workers.
    """
    return transact(db, lambda tr: _finish(tr, name))


def _finish(tr: Transaction, name: str) -> bool:
    config = read_config(tr, name)
    if config.former is None:
        return False
    former = QueueKeys(name).of_generation(config.former.generation)
    # By snapshot reads: nothing is added under that shape any more, and where nothing is left nothing is staged again.
    rows = tr.snapshot.get_range(*former.rows, limit=1)
    states = tr.snapshot.get_range(*former.states, streaming_mode=WANT_ALL)
    if rows.to_list() or any(BucketState.from_bytes(row.value).staged for row in states):
        return False
    for bounds in former:
        tr.clear_range(*bounds)
    write_config(tr, replace(config, former=None))
    return True
