"""Queued and staged updates by key, for reads that include updates not yet combined."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from cq import runtime
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.errors import BacklogTooDeep, NotNow, PendingUnreadable
from cq.keys import QueueKeys
from cq.keys.queue import bucket_in
from cq.queue.bucket_state import BucketState, needs_purge
from cq.queue.rows import Backlog, Row, Updates, by_key, drop_repeated_operations, notified, read_rows
from cq.store.api import ACCESSED_UNREADABLE, WANT_ALL, TransactionRead, error_code
from cq.store.own_writes import hides_writes, makes_unreadable, recorded

PENDING_BYTES: Final = 1_000_000
"""Maximum bytes of queued updates of a bucket, and of staged updates, that a read combines."""

_UNUSED_BYTES: Final = 16


def read_pending_updates(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> Updates:
    """The staged updates and then the queued ones, in commit order: of all keys, or at least of the wanted keys.

    Raises `BacklogTooDeep` if more than 1 MB is queued in one of the buckets, or staged; `PendingUnreadable` after an
    add to one of the buckets in the same transaction; and `NotNow` if a purge of one of the buckets is not complete.
    """
    staged = _staged(snapshot, config, wanted)
    backlogs, rows = _queued(snapshot, config, wanted)
    is_all = len(rows) == sum(len(each.rows) for each in backlogs)
    updates: Updates = {}
    for queued in [each.updates for each in backlogs] if is_all else [by_key(rows)]:
        for encoded, some in queued.items():
            updates.setdefault(encoded, []).extend(some)
    for encoded, combined in staged:
        updates.setdefault(encoded, []).insert(0, combined)
    return updates


def read_pending_rows(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None = None
) -> list[Row]:
    """The queued rows that count, of all keys, or at least of the wanted keys; raises as `read_pending_updates`."""
    return _queued(snapshot, config, wanted)[1]


def _staged(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None
) -> Iterable[tuple[bytes, Any]]:
    """(encoded key, staged updates, combined into one) of the wanted keys, which are being read, or of all keys."""
    queue = QueueKeys(config.name)
    if wanted is not None:
        futures = [(encoded, snapshot.get(queue.staged(encoded))) for encoded in wanted]
        return ((encoded, codec.decode(each.value)) for encoded, each in futures if each.value is not None)
    found, size = [], 0
    for row in snapshot.get_range(*queue.all_staged(), streaming_mode=WANT_ALL):
        found.append((queue.encoded_key(row.key), codec.decode(row.value)))
        size += len(row.key) + len(row.value)
        if size > PENDING_BYTES:
            raise _too_deep(config.name, "are staged")
    return found


def _queued(
    snapshot: TransactionRead, config: QueueConfig, wanted: Sequence[bytes] | None
) -> tuple[list[Backlog], list[Row]]:
    """The backlog of each bucket, those under the former shape first, and the rows of all that count."""
    queue, name = QueueKeys(config.name), config.name
    found: list[Backlog] = []
    with _before_adds(name):
        if wanted is None:
            _refuse_after_adds(snapshot, queue, name)
            buckets = set(notified(snapshot.get_range(*queue.notifications()), queue))
        else:
            shapes = [each for each in (config, config.under_former_shape()) if each is not None]
            buckets = {(each.generation, bucket_of(key, each.buckets)) for key in wanted for each in shapes}
        _refuse_while_purging(snapshot, config, None if wanted is None else buckets)
        for each in sorted(buckets):
            _refuse_after_adds(snapshot, queue, name, each)
            backlog = read_rows(snapshot, queue.rows(*each), PENDING_BYTES)
            if not backlog.at_end:
                raise _too_deep(name, f"are queued in bucket {each[1]}")
            found.append(backlog)
        # Once for all buckets: on a cluster, each look-up takes a round trip.
        return found, drop_repeated_operations(snapshot, queue, [row for each in found for row in each.rows])


def _refuse_while_purging(
    snapshot: TransactionRead, config: QueueConfig, buckets: Collection[tuple[int, int]] | None
) -> None:
    """Raise `NotNow` if a purge of one of these buckets is not complete; None: of all buckets.

    Values and rows that the purge has not deleted yet would count.
    """
    if config.purges.generation != config.generation:
        return
    queue = QueueKeys(config.name)
    wanted = config.all_buckets if buckets is None else sorted(buckets)
    states = [snapshot.get(queue.state(*each)) for each in wanted]
    if any(needs_purge(config, BucketState.from_bytes(each.value)) for each in states):
        raise NotNow(
            f"queue {config.name!r} is being purged: run workers, and try again later, or read without pending"
        )


@contextmanager
def _before_adds(name: str) -> Iterator[None]:
    """A context for reads of queued updates; raises `PendingUnreadable` for an unreadable key.

    `_refuse_after_adds` does so before the read, so that the transaction can still commit. This context is for the
    markers of an operation id that the transaction has used itself.
    """
    try:
        yield
    except Exception as error:
        if error_code(error) == ACCESSED_UNREADABLE:
            raise _unreadable(name) from error
        raise


def _unreadable(name: str) -> PendingUnreadable:
    return PendingUnreadable(
        f"queued updates of queue {name!r} cannot be read after an add in the same transaction, "
        "as their place in the commit order is not known yet: read first, or in a separate transaction"
    )


def _refuse_after_adds(
    snapshot: TransactionRead, queue: QueueKeys, name: str, only: tuple[int, int] | None = None
) -> None:
    """Raise `PendingUnreadable` if the transaction has added to the queue; the transaction can still commit.

    Args:
        only: generation and number of a bucket: then adds to other buckets are allowed.
    """
    added = name if only is None else queue.notification(*only)
    if hides_writes(snapshot, added, queue.document(runtime.token_bytes(_UNUSED_BYTES))):
        raise PendingUnreadable(
            f"queued updates of queue {name!r} cannot be read after an add in the same transaction, which hides its "
            "own writes (read_your_writes_disable or snapshot_ryw_disable): read first, or in a separate transaction"
        )
    for bucket in _recorded_buckets(snapshot, queue) if only is None else [only]:
        if makes_unreadable(snapshot, queue.notification(*bucket), queue.after_rows(*bucket)):
            raise _unreadable(name)


def has_added(snapshot: TransactionRead, name: str) -> bool:
    """Whether the present try of the transaction has added to a queue; the transaction can still commit."""
    queue = QueueKeys(name)
    buckets = _recorded_buckets(snapshot, queue)
    return any(
        makes_unreadable(snapshot, queue.notification(*each), queue.after_rows(*each)) for each in buckets
    )


def _recorded_buckets(snapshot: TransactionRead, queue: QueueKeys) -> list[tuple[int, int]]:
    """Generation and number of the buckets to which the transaction has added, perhaps in an earlier try."""
    begin, end = queue.notifications()
    written = (each for each in recorded(snapshot) if isinstance(each, bytes) and begin <= each < end)
    return [bucket for each in written if (bucket := bucket_in(begin, each)) is not None]


def _too_deep(name: str, where: str) -> BacklogTooDeep:
    """The error of a read that would have to combine too many bytes; `where` ends its first clause."""
    return BacklogTooDeep(
        f"more than {PENDING_BYTES:,} bytes of updates of queue {name!r} {where}: "
        "run more workers, or read without pending"
    )
