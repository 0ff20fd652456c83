"""Deletions of values in a pass: by a purge, piece by piece, and of due keys in a queue with an expiry.

A purge first drops the updates queued before it. Then it deletes the values in hash order. An expiry deletes due keys
without queued updates, in the order of their times; it drops no update. A pass that deletes combines no update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cq.encoding import codec
from cq.errors import CorruptData
from cq.expiry.due import BucketExpiry, DueKey
from cq.expiry.index import IndexMove
from cq.keys import VERSIONSTAMP_BYTES, place
from cq.keys.expiry import pack_count, pack_time
from cq.observer import EXPIRY, PURGE, Change
from cq.passes.decision import write_limit
from cq.passes.effects import Effects
from cq.passes.reporting import Unreported, finish_changes
from cq.passes.view import View, ViewReader
from cq.queue.bucket_state import has_new_purge
from cq.queue.ledger import count_dropped
from cq.store.bounded_reads import prefix_read, read_at_hashes
from cq.store.sizes import clear_bytes, fitting

_HASH_BYTES: Final = 4


# Purge


def purge(view: View, reader: ViewReader) -> Effects:
    """Delete the next values of a bucket; the first pass of a purge also drops all updates queued before it.

    Rejected keys are deleted without a report. A value that cannot be read stays. A change is complete if no update of
    its key was queued after the purge: such updates are combined only when the purge is complete.
    """
    config, plan, state = view.config, view.plan, view.state
    effects = Effects(view)
    cursor, since = state.purging, b""
    # A new purge begins from the first value, even if an earlier one is not complete.
    if cursor is None or has_new_purge(config, state):
        cursor, since = b"", drop_queued(effects, view, reader.read_purge())
    share = view.share(plan.limits.load_bytes)
    values, reached = reader.read_values(cursor, max(1, plan.max_report), share)
    later = {encoded for row in view.rows if row.versionstamp >= since for encoded, _ in row.updates}
    unreported: Unreported = {}
    for encoded, stored in values:
        try:
            key, old = config.key.decode(encoded), codec.decode(stored)
        except CorruptData:
            continue
        effects.clear(view.keys.value(encoded))
        effects.result.purged += 1
        if encoded in plan.rejected:
            unreported[encoded] = stored, plan.rejected[encoded]
        else:
            is_complete = view.backlog.at_end and encoded not in later
            effects.report_change(encoded, place(encoded), Change(key, old, None, is_complete, PURGE))
    effects.result.invalidates_cache = True  # the purge has cleared the staged updates
    purged = max(state.purged, config.purges.latest)
    cleared = replace(state, staged=False, cursor=b"", unfinished_since=0, purged=purged, purging=reached)
    finish_changes(effects, view, reader, cleared, unreported)
    return effects


def drop_queued(effects: Effects, view: View, versionstamp: bytes | None) -> bytes:
    """Clear the rows queued before the purge, and the staged updates of the bucket; returns the versionstamp.

    Rows of the transaction of the purge stay: they were added after it, see `cq.admin.purging.purge`.
    """
    config = view.config
    if versionstamp is not None and len(versionstamp) != VERSIONSTAMP_BYTES:
        raise CorruptData(f"the mark of a purge is not one that cq wrote: {versionstamp[:40]!r}")
    if versionstamp is not None:
        effects.clear_range(*view.keys.rows_before(config.generation, view.number, versionstamp))
    effects.clear_range(*view.keys.all_staged.of_bucket(config.buckets, view.number))
    return versionstamp or b""


# Expiry


def expire(view: View, reader: ViewReader, expiry: BucketExpiry) -> Effects | None:
    """Delete the next due keys that have no queued updates; None if there is none, or if rows come first."""
    plan = view.plan
    # A bucket of the former shape deletes no keys: the present shape may have later updates of them.
    if view.is_former or not expiry.is_any_due():
        return None
    is_turn = plan.expires_first or view.backlog.last_key is None
    is_other = plan.rejected or plan.rejected_in_backfill or plan.max_backfill
    if not is_turn or is_other or not view.backlog.at_end or view.state.staged:
        return None
    limits, is_observed = plan.limits, bool(view.code.observers)
    most = view.share(limits.load_bytes if is_observed else write_limit(limits, is_observed=False))
    due = expiry.read(_max_due(view, expiry, most))
    if plan.rejected_in_expiry:
        due = [each for each in due if each.where[_HASH_BYTES:] in plan.rejected_in_expiry]
    effects = _delete_due(view, reader, expiry, due, most)
    expiry.may_be_due |= effects is not None or bool(plan.rejected_in_expiry)
    return effects


def _max_due(view: View, expiry: BucketExpiry, limit_bytes: int) -> int:
    """The number of entries to read: more than these keys cannot be deleted with this limit, however short."""
    most = max(1, view.plan.max_report)
    shortest = _deletion_bytes(view, expiry, b"")
    return most if view.plan.rejected_in_expiry else min(most, 1 + limit_bytes // shortest)


def _deletion_bytes(view: View, expiry: BucketExpiry, where: bytes) -> int:
    """The bytes of deleting the key at a place."""
    return expiry.index.deletion_bytes(where) + clear_bytes(view.keys.value_at(where))


def _delete_due(
    view: View, reader: ViewReader, expiry: BucketExpiry, due: Sequence[DueKey], limit_bytes: int
) -> Effects | None:
    """Delete the first of these keys.

    The view has all queued updates of the bucket, and no update is staged. A later update is committed after the
    pass's read version, and so combined after the deletion. An entry that is not at its key's stored time is
    cleared alone. A value that cannot be read stays, without an entry.
    """
    value_at, rejected = view.keys.value_at, view.plan.rejected_in_expiry
    index, config = expiry.index, view.config
    entries = {each.where: each for each in due}  # one of each key
    free = [each for where, each in entries.items() if where[_HASH_BYTES:] not in view.queued]
    if not free:
        return None
    costs = (_deletion_bytes(view, expiry, each.where) for each in free)
    order = [each.where[_HASH_BYTES:] for each in free[: fitting(costs, limit_bytes)]]
    values = read_at_hashes(reader.snapshot, value_at, order, {}, limit_bytes)
    order = prefix_read(order, values)
    index.read(order)
    effects = Effects(view)
    effects.is_expiring = True
    unreported: Unreported = {}
    dropped: list[tuple[bytes, Any]] = []
    times: list[int] = []
    for encoded, (time, where) in zip(order, free, strict=False):
        stored, value = pack_time(time), values[encoded]
        if index.time_of(encoded, stored) != stored:
            effects.clear(index.keys.entry(time, where))
            continue
        index.write(effects, [IndexMove(where, stored, None)])
        if value is None:
            continue
        try:
            key, old = config.key.decode(encoded), codec.decode(value)
        except CorruptData:
            continue
        effects.clear(value_at(where))
        dropped.append((encoded, old))
        times.append(time)
        if encoded in rejected:
            unreported[encoded] = value, rejected[encoded]
        else:
            effects.report_change(encoded, where, Change(key, old, None, cause=EXPIRY))
    effects.result.expired = len(dropped)
    count_dropped(effects, config, dropped)
    effects.add(index.keys.count, pack_count(len(dropped)))
    if times and index.spec.is_by_key:
        effects.byte_max(index.keys.latest_expired, pack_time(max(times)))
    finish_changes(effects, view, reader, view.state, unreported)
    return effects
