"""Deletions of values in a pass: by a purge, piece by piece, and of due keys in a queue with an expiry.

A purge first drops the updates queued before it. Then it deletes the values in hash order. An expiry deletes due keys
without queued updates, in the order of their times; it drops no update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cq import keys
from cq.config.expiry import ExpirySpec
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData
from cq.expiry.due import DueEntries, DueKey
from cq.expiry.index import ExpiryIndex, IndexMove
from cq.failure import KeyFailure
from cq.keys import QueueKeys, place
from cq.keys.expiry import pack_count, pack_time
from cq.observer import EXPIRY, PURGE, Change
from cq.passes.batch import Batch
from cq.passes.open_bucket import OpenBucket
from cq.passes.reporting import note_unreported
from cq.queue.bounded_reads import prefix_read, read_at_hashes, read_values
from cq.queue.bucket_state import BucketState, has_new_purge, needs_purge
from cq.queue.ledger import count_dropped
from cq.queue.missed_reports import MissedReports
from cq.store.api import Transaction
from cq.store.sizes import clear_bytes, fitting

_HASH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Deleted:
    """Some values of a bucket that a pass deletes.

    Attributes:
        cause: PURGE or EXPIRY.
        state: the new state of the bucket, except for its token.
        keys: encoded keys to report.
        changes: their changes, each with the key's position in hash order.
        unreported: {encoded key: (encoded value, failure)} of keys that observers rejected.
    """

    cause: str
    state: BucketState
    keys: list[bytes] = field(default_factory=list)
    changes: list[tuple[bytes, Change]] = field(default_factory=list)
    unreported: dict[bytes, tuple[bytes, KeyFailure]] = field(default_factory=dict)

    @property
    def all_keys(self) -> list[bytes]:
        """The encoded keys of all deleted values."""
        return [*self.keys, *self.unreported]

    def note_missed(
        self, missed: MissedReports, positions: Mapping[int, bytes | None]
    ) -> dict[bytes, KeyFailure]:
        """Write the missed reports of rejected keys, and clear those of all others; return {rejected key: failure}."""
        missed.read_all(self.all_keys)
        missed.check(self.keys)
        missed.clear(self.keys)
        return note_unreported(missed, self.unreported, positions)


def purge_some(batch: Batch, limit: int, limit_bytes: int) -> Deleted:
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
    found = Deleted(PURGE, _purged_until(config, batch.state, reached))
    later = {encoded for row in batch.rows if row.versionstamp > since for encoded, _ in row.updates}
    for encoded, value in values:
        tr.clear(queue.value(encoded))
        if encoded in rejected:
            found.unreported[encoded] = codec.encode(value), rejected[encoded]
        else:
            is_complete = batch.backlog.at_end and encoded not in later
            change = Change(config.key.decode(encoded), value, None, is_complete, PURGE)
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


class BucketExpiry:
    """The expiry of one bucket in one pass: the index of times, and the deletion of due keys.

    Attributes:
        index: the index of the queue's keys.
        has_looked: whether the pass has searched for due keys.
        may_be_due: whether more keys of the bucket may be due, and a further pass must look for them.
    """

    def __init__(self, bucket: OpenBucket, spec: ExpirySpec) -> None:
        self.bucket = bucket
        self.index = ExpiryIndex(bucket.tr, bucket.config, spec)
        # A bucket of the former shape deletes no keys: the present shape may have later updates of them.
        self._due = None
        if bucket.plan.checks_due and not bucket.is_former:
            self._due = self._first_due()  # its first read is under way while the pass reads its rows
        self.has_looked = False
        self.may_be_due = self._due is not None

    @classmethod
    def of(cls, bucket: OpenBucket) -> BucketExpiry | None:
        """The expiry of a bucket; None if the queue's keys do not expire."""
        return None if bucket.config.expiry is None else cls(bucket, bucket.config.expiry)

    def _first_due(self) -> DueEntries:
        until = self.index.spec.latest_due(self.index.now)
        return DueEntries(self.bucket.tr.snapshot, self.bucket.config, self.bucket.number, until)

    def delete_due(self, batch: Batch, missed: MissedReports) -> Deleted | None:
        """Delete the next due keys that have no queued updates; return None if there is none, or if rows come first."""
        plan = self.bucket.plan
        if batch.is_empty and not self.bucket.is_former:
            self._due = self._due or self._first_due()
        is_turn = plan.expires_first or batch.backlog.last_key is None
        is_other = plan.rejected or plan.rejected_in_backfill or plan.most_backfilled
        if self._due is None or not is_turn or is_other or not batch.backlog.at_end or batch.state.staged:
            return None
        self.has_looked = True
        limits = plan.limits
        most = missed.share(
            limits.load_bytes if self.bucket.is_observed else limits.to_write(is_observed=False)
        )
        due, self.may_be_due = self._due.read(self._most_due(most))
        if plan.rejected_in_expiry:
            due = [each for each in due if each.where[_HASH_BYTES:] in plan.rejected_in_expiry]
        found = self._delete(batch, due, most)
        self.may_be_due |= found is not None or bool(plan.rejected_in_expiry)
        return found

    def _most_due(self, limit_bytes: int) -> int:
        """The number of entries to read: more than these keys cannot be deleted with this limit, however short."""
        plan = self.bucket.plan
        most = max(1, plan.most_reported)
        return most if plan.rejected_in_expiry else min(most, 1 + limit_bytes // self._deletion_bytes(b""))

    def _deletion_bytes(self, where: bytes) -> int:
        """The bytes of deleting the key at a place."""
        return self.index.deletion_bytes(where) + clear_bytes(self.bucket.keys.value_at(where))

    def _delete(self, batch: Batch, due: Sequence[DueKey], limit_bytes: int) -> Deleted | None:
        """Delete the first of these keys.

        The batch has all queued updates of the bucket, and no update is staged. A later update is committed after the
        pass's read version, and so combined after the deletion. An entry that is not at its key's stored time is
        cleared alone. A value that cannot be read stays, without an entry.
        """
        tr, config, index = self.bucket.tr, self.bucket.config, self.index
        rejected = self.bucket.plan.rejected_in_expiry
        value_at = self.bucket.keys.value_at
        entries = {each.where: each for each in due}  # one of each key
        free = [each for where, each in entries.items() if where[_HASH_BYTES:] not in batch.queued]
        if not free:
            return None
        costs = (self._deletion_bytes(each.where) for each in free)
        order = [each.where[_HASH_BYTES:] for each in free[: fitting(costs, limit_bytes)]]
        values = read_at_hashes(tr.snapshot, value_at, order, {}, limit_bytes)
        order = prefix_read(order, values)
        index.read(order)
        found = Deleted(EXPIRY, batch.state)
        dropped: list[tuple[bytes, Any]] = []
        times: list[int] = []
        for encoded, (time, where) in zip(order, free, strict=False):
            stored, value = pack_time(time), values[encoded]
            if index.time_of(encoded, stored) != stored:
                tr.clear(index.keys.entry(time, where))
                continue
            index.write([IndexMove(where, stored, None)])
            if value is None:
                continue
            try:
                key, old = config.key.decode(encoded), codec.decode(value)
            except CorruptData:
                continue
            tr.clear(value_at(where))
            dropped.append((encoded, old))
            times.append(time)
            if encoded in rejected:
                found.unreported[encoded] = value, rejected[encoded]
            else:
                found.keys.append(encoded)
                found.changes.append((where, Change(key, old, None, cause=EXPIRY)))
        count_dropped(tr, config, dropped)
        tr.add(index.keys.count, pack_count(len(dropped)))
        if times and index.spec.is_by_key:
            tr.byte_max(index.keys.latest_expired, pack_time(max(times)))
        return found


def next_deletion(batch: Batch, missed: MissedReports, expiry: BucketExpiry | None) -> Deleted | None:
    """Delete the next values, by a purge or as they are due; None: the pass combines."""
    plan = batch.bucket.plan
    if needs_purge(batch.bucket.config, batch.state):
        limit = 1 if plan.rejected else max(1, plan.most_reported)
        return purge_some(batch, limit, missed.share(plan.limits.load_bytes))
    return None if expiry is None else expiry.delete_due(batch, missed)
