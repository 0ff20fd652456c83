"""Queued and staged updates by key, for reads that include updates not yet combined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cq.config.queue import QueueConfig
from cq.encoding import codec, hashing
from cq.keys import QueueKeys
from cq.queue.pending import PENDING_BYTES, before_adds, read_pending, refuse_after_adds, too_deep
from cq.queue.rows import Row, Updates, by_key, drop_repeated_operations, notified
from cq.store.api import WANT_ALL, TransactionRead


def read_pending_updates(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> Updates:
    """The staged updates and then the queued ones, in commit order: of all keys, or at least of the wanted keys.

    Raises `BacklogTooDeep` if more than 1 MB is queued in one of the buckets, or staged; and `PendingUnreadable` after
    an add to one of the buckets in the same transaction.
    """
    with before_adds(config.name):
        staged = _staged(snapshot, QueueKeys(config.name), config, wanted)
        updates = by_key(_read_rows(snapshot, config, wanted))
    for encoded, combined in staged:
        updates.setdefault(encoded, []).insert(0, combined)
    return updates


def read_pending_rows(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> list[Row]:
    """The queued rows that count, of all keys, or at least of the wanted keys; raises as `read_pending_updates`."""
    with before_adds(config.name):
        return _read_rows(snapshot, config, wanted)


def _read_rows(snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None) -> list[Row]:
    queue = QueueKeys(config.name)
    if wanted is None:
        refuse_after_adds(snapshot, queue, config.name)
        buckets = set(notified(snapshot.get_range(*queue.notifications()), queue))
    else:
        buckets = _buckets_of(config, wanted)
    rows = [row for each in sorted(buckets) for row in read_pending(snapshot, queue, config.name, *each).rows]
    return drop_repeated_operations(snapshot, queue, rows)


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
