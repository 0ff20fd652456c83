"""Purges in a pass: drop the updates queued before the purge, then delete the values piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cq import keys
from cq.admin.purge import has_new_purge
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData
from cq.keys import QueueKeys, place
from cq.observer import Change
from cq.passes.batch import Batch
from cq.queue.bounded_reads import read_values
from cq.queue.bucket_state import BucketState
from cq.store.api import Transaction


@dataclass(frozen=True, slots=True)
class Purged:
    """A piece of a bucket's values that a pass deletes.

    Attributes:
        keys: encoded keys to report.
        changes: their changes, each with the key's position in hash order.
        unreported: {encoded key: encoded value} of keys that observers rejected.
        state: the new state of the bucket, except for its token.
    """

    keys: list[bytes]
    changes: list[tuple[bytes, Change]]
    unreported: dict[bytes, bytes]
    state: BucketState


def purge_some(batch: Batch, limit: int, limit_bytes: int) -> Purged:
    """Delete the next values of a bucket; the first pass of a purge also drops all updates queued before it.

    Rejected keys are deleted without a report. A change is complete if no update of its key was queued after the purge:
    such updates are combined only when the purge is complete.
    """
    bucket = batch.bucket
    tr, config, rejected = bucket.tr, bucket.config, bucket.plan.rejected
    cursor, since = batch.state.purging, b""
    # A new purge begins from the first value, even if an earlier one is not complete.
    if cursor is None or has_new_purge(config, batch.state):
        cursor, since = b"", _drop_queued(tr, config, bucket.number)
    queue = QueueKeys(config.name)
    values, reached = read_values(tr, config, bucket.number, cursor, limit, limit_bytes)
    found = Purged([], [], {}, _purged_until(config, batch.state, reached))
    later = {encoded for row in batch.rows if row.versionstamp > since for encoded, _ in row.updates}
    for encoded, value in values:
        tr.clear(queue.value(encoded))
        if encoded in rejected:
            found.unreported[encoded] = codec.encode(value)
        else:
            is_complete = batch.backlog.at_end and encoded not in later
            change = Change(config.key.decode(encoded), value, None, is_complete)
            found.keys.append(encoded)
            found.changes.append((place(encoded), change))
    return found


def _purged_until(config: QueueConfig, state: BucketState, reached: bytes | None) -> BucketState:
    purges = max(state.purged, config.purges)
    return replace(state, staged=False, cursor=b"", unfinished_since=0, purged=purges, purging=reached)


def _drop_queued(tr: Transaction, config: QueueConfig, bucket: int) -> bytes:
    """Clear the rows queued before the purge and the staged updates of a bucket; returns the purge's versionstamp."""
    queue = QueueKeys(config.name)
    versionstamp = tr.snapshot.get(queue.purge).value
    if versionstamp is not None and len(versionstamp) != keys.VERSIONSTAMP_BYTES:
        raise CorruptData(f"the mark of a purge is not one that cq wrote: {versionstamp[:40]!r}")
    if versionstamp is not None:
        tr.clear_range(*queue.rows_until(config.generation, bucket, versionstamp))
    tr.clear_range(*queue.staged_of_bucket(config.buckets, bucket))
    return versionstamp or b""
