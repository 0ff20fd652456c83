"""Deleting all that a queue holds, through its passes: `purge`; and the queue itself: `delete`.

A purge is a mark in the configuration and the versionstamp of its commit, which also drops what was set aside. The
first pass over a bucket that finds the mark drops what was queued up to that versionstamp, and what is staged: nothing
of a later transaction can be among it, as a pass that could have folded such updates would have found the mark, too.
Then passes delete the values in hash order, a piece at a time, and tell the observers of each deletion; only then are
updates of later transactions combined.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cq import codec, keys
from cq.backfill import read_states
from cq.batch import Batch
from cq.changes import Change
from cq.config import QueueConfig, notify_all, read_config, refuse_while_rebucketing, write_config
from cq.errors import CorruptData
from cq.keys import QueueKeys, place
from cq.ledger import with_audit, without_audit
from cq.reading import read_values
from cq.state import BucketState
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact
from cq.windowkeys import WindowKeys


def purge(db: Database, name: str) -> QueueConfig:
    """Have workers delete all values of a queue and all that waits; what is added later counts. Returns at once.

    Observers are told of every deletion, so that a top and an exported table follow. Raises `QueueNotConfigured`, and
    `NotNow` while the queue is being rebucketed.
    """

    def mark(tr: Transaction) -> QueueConfig:
        current = read_config(tr, name)
        refuse_while_rebucketing(current)
        changed = replace(current, purges=current.purges + 1, purge_generation=current.generation)
        if current.audit is not None:  # what is left of it once the purge is done was added later
            changed = with_audit(without_audit(tr, changed), whole=True)
        queue = QueueKeys(name)
        tr.set_versionstamped_value(queue.purge, keys.INCOMPLETE_VERSIONSTAMP)
        for bounds in queue.sources():  # whose counts are gone: what is stored again is to count again
            tr.clear_range(*bounds)
        tr.clear_range(*WindowKeys(name).rows())  # what is dropped must not be taken out, too
        tr.clear_range(*WindowKeys(name).operations())
        tr.clear_range(*queue.aside())  # at once: added again, it would count as later than the purge
        notify_all(tr, current)
        write_config(tr, changed)
        return changed

    return transact(db, mark)


def is_to_be_purged(config: QueueConfig, state: BucketState) -> bool:
    """Whether a bucket has a purge before it, or under way."""
    return _is_new(config, state) or state.purging is not None


def _is_new(config: QueueConfig, state: BucketState) -> bool:
    """Whether a bucket has a purge before it that it has not begun."""
    return config.purge_generation == config.generation and state.purged < config.purges


@dataclass(frozen=True, slots=True)
class Purged:
    """A piece of a bucket's values that a pass deletes.

    Attributes:
        keys: encoded, those that are reported.
        changes: of these, with the place of each key in hash order.
        refused: {encoded key: its value, encoded} of those that observers refuse.
        state: the bucket's, except for its token.
    """

    keys: list[bytes]
    changes: list[tuple[bytes, Change]]
    refused: dict[bytes, bytes]
    state: BucketState


def purge_some(
    tr: Transaction,
    config: QueueConfig,
    bucket: int,
    batch: Batch,
    limit: int,
    limit_bytes: int,
    condemned: Collection[bytes],
) -> Purged:
    """Delete the next values of a bucket, in a pass; at the beginning also all its updates from before the purge.

    Condemned keys are deleted without a report. A change is complete if no update of its key from after the purge is
    queued: such updates are combined only after the purge.
    """
    cursor, since = batch.state.purging, b""
    if cursor is None or _is_new(config, batch.state):
        cursor, since = b"", _drop_waiting(tr, config, bucket)
    queue = QueueKeys(config.name)
    values, reached = read_values(tr, config, bucket, cursor, limit, limit_bytes)
    found = Purged([], [], {}, _purged_until(config, batch.state, reached))
    later = {encoded for row in batch.rows if row.versionstamp > since for encoded, _ in row.updates}
    for encoded, value in values:
        tr.clear(queue.value(encoded))
        if encoded in condemned:
            found.refused[encoded] = codec.encode(value)
        else:
            is_complete = batch.backlog.at_end and encoded not in later
            change = Change(config.key.decode(encoded), value, None, is_complete)
            found.keys.append(encoded)
            found.changes.append((place(encoded), change))
    return found


def _purged_until(config: QueueConfig, state: BucketState, reached: bytes | None) -> BucketState:
    purges = max(state.purged, config.purges)
    return replace(state, staged=False, cursor=b"", unfinished_since=0, purged=purges, purging=reached)


def _drop_waiting(tr: Transaction, config: QueueConfig, bucket: int) -> bytes:
    """Clear the rows queued before the purge and the staged updates of a bucket; returns the purge's versionstamp."""
    queue = QueueKeys(config.name)
    versionstamp = tr.snapshot.get(queue.purge).value
    if versionstamp is not None and len(versionstamp) != keys.VERSIONSTAMP_BYTES:
        raise CorruptData(f"the mark of a purge is not one that cq wrote: {versionstamp[:40]!r}")
    if versionstamp is not None:
        tr.clear_range(*queue.rows_until(config.generation, bucket, versionstamp))
    tr.clear_range(*queue.staged_of_bucket(config.buckets, bucket))
    return versionstamp or b""


def is_purging(db: Database, name: str) -> bool:
    """Whether a purge of a queue is not done in all buckets yet. Raises `QueueNotConfigured`."""
    return transact(db, lambda tr: read_purging(tr.snapshot, read_config(tr.snapshot, name)))


def read_purging(tr: TransactionRead, config: QueueConfig) -> bool:
    """Whether any bucket has a purge before it, or under way."""
    if config.purge_generation != config.generation:
        return False
    return any(is_to_be_purged(config, state) for state in read_states(tr, config))


def delete(db: Database, name: str) -> None:
    """Delete a queue with all that belongs to it, also what observers keep; a table it was exported to stays.

    Adds, passes and exports under way fail or find it gone. One transaction. Raises `QueueNotConfigured`.
    """

    def forget(tr: Transaction) -> None:
        config = read_config(tr, name)
        write_config(tr, config)  # so that adds and workers learn of it
        prefix = QueueKeys(name).prefix
        tr.clear_range(prefix, keys.prefix_end(prefix))
        tr.clear(keys.queue_entry(name))

    transact(db, forget)
