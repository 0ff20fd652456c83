"""Sums of queued and staged updates by key, for reads that include updates not yet combined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from cq.config.queue import QueueConfig
from cq.encoding import codec, hashing
from cq.keys import QueueKeys
from cq.queue.pending import PENDING_BYTES, before_adds, read_pending, refuse_if_hidden, too_deep
from cq.queue.rows import notified
from cq.queue.window_rows import read_overdue, sum_up
from cq.store.api import WANT_ALL, TransactionRead


def read_pending_sums(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> dict[bytes, int]:
    """{encoded key: sum} of queued and staged updates, of the wanted keys or of all keys.

    Raises `BacklogTooDeep` if more than 1 MB is queued in one of the buckets, or staged; and `PendingUnreadable` after
    an add to one of the buckets in the same transaction.
    """
    with before_adds(config.name):
        return _read(snapshot, config, wanted)


def read_changes(snapshot: TransactionRead, config: QueueConfig, now: int) -> dict[bytes, int]:
    """{encoded key: difference between its total and its value}: pending updates, minus overdue rows of the window.

    Raises the errors of `read_pending_sums` and `read_overdue`.
    """
    changes = defaultdict(int, read_pending_sums(snapshot, config))
    if config.window is not None:
        for encoded, total in read_overdue(snapshot, config, now).items():
            changes[encoded] -= total
    return {encoded: change for encoded, change in changes.items() if change}


def _read(snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None) -> dict[bytes, int]:
    queue = QueueKeys(config.name)
    staged = _staged(snapshot, queue, config, wanted)
    if wanted is None:
        refuse_if_hidden(snapshot, queue, config.name, config.name)
        buckets = set(notified(snapshot.get_range(*queue.notifications()), queue))
    else:
        buckets = _buckets_of(config, wanted)
    rows = [row for each in sorted(buckets) for row in read_pending(snapshot, queue, config.name, *each).rows]
    sums = defaultdict(int, sum_up(snapshot, queue, rows))
    for encoded, total in staged:
        sums[encoded] += total
    return {encoded: total for encoded, total in sums.items() if total}


def _buckets_of(config: QueueConfig, wanted: Iterable[bytes]) -> set[tuple[int, int]]:
    """Generation and number of the buckets of these keys, including buckets of the former shape."""
    former = config.under_former_shape()
    shapes = [config] if former is None else [config, former]
    return {
        (each.generation, hashing.bucket_of(encoded, each.buckets)) for encoded in wanted for each in shapes
    }


def _staged(
    snapshot: TransactionRead, queue: QueueKeys, config: QueueConfig, wanted: Sequence[bytes] | None
) -> list[tuple[bytes, int]]:
    """(encoded key, staged sum) of the wanted keys, or of all keys."""
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
