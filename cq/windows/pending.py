"""Queued and staged updates by key, for reads that include updates not yet combined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cq.config.queue import QueueConfig
from cq.encoding import codec, hashing
from cq.keys import QueueKeys
from cq.queue.pending import PENDING_BYTES, before_adds, read_pending, refuse_after_adds, too_deep
from cq.queue.rows import Updates, notified
from cq.queue.window_rows import read_overdue, removals, updates_that_count
from cq.store.api import WANT_ALL, TransactionRead


def read_pending_updates(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> Updates:
    """The staged updates and then the queued ones, in commit order: of all keys, or at least of the wanted keys.

    Raises `BacklogTooDeep` if more than 1 MB is queued in one of the buckets, or staged; and `PendingUnreadable` after
    an add to one of the buckets in the same transaction.
    """
    with before_adds(config.name):
        return _read(snapshot, config, wanted)


def read_changes(snapshot: TransactionRead, config: QueueConfig, now: int) -> Updates:
    """The updates that change values into totals: the pending ones, and removals of the window's overdue rows.

    Raises the errors of `read_pending_updates` and `read_overdue`.
    """
    changes = read_pending_updates(snapshot, config)
    if config.window is not None:
        for encoded, updates in read_overdue(snapshot, config, now).items():
            changes.setdefault(encoded, []).extend(removals(config, config.key.decode(encoded), updates))
    return changes


def _read(snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None) -> Updates:
    queue = QueueKeys(config.name)
    staged = _staged(snapshot, queue, config, wanted)
    if wanted is None:
        refuse_after_adds(snapshot, queue, config.name)
        buckets = set(notified(snapshot.get_range(*queue.notifications()), queue))
    else:
        buckets = _buckets_of(config, wanted)
    rows = [row for each in sorted(buckets) for row in read_pending(snapshot, queue, config.name, *each).rows]
    updates = updates_that_count(snapshot, queue, rows)
    for encoded, combined in staged:
        updates.setdefault(encoded, []).insert(0, combined)
    return updates


def _buckets_of(config: QueueConfig, wanted: Iterable[bytes]) -> set[tuple[int, int]]:
    """Generation and number of the buckets of these keys, including buckets of the former shape."""
    former = config.under_former_shape()
    shapes = [config] if former is None else [config, former]
    return {
        (each.generation, hashing.bucket_of(encoded, each.buckets)) for encoded in wanted for each in shapes
    }


def _staged(
    snapshot: TransactionRead, queue: QueueKeys, config: QueueConfig, wanted: Sequence[bytes] | None
) -> list[tuple[bytes, Any]]:
    """(encoded key, staged updates, combined into one) of the wanted keys, or of all keys."""
    if wanted is not None:
        futures = [(encoded, snapshot.get(queue.staged(encoded))) for encoded in wanted]
        return [(encoded, codec.decode(each.value)) for encoded, each in futures if each.value is not None]
    found, size = [], 0
    for row in snapshot.get_range(*queue.staged_of_bucket(1, 0), streaming_mode=WANT_ALL):
        found.append((queue.encoded_key(row.key), codec.decode(row.value)))
        size += len(row.key) + len(row.value)
        if size > PENDING_BYTES:
            raise too_deep(config.name, "are staged")
    return found
