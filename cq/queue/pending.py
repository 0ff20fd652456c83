"""Reads of a bucket's queued updates, for reads that include updates not yet combined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cq import runtime
from cq.errors import BacklogTooDeep, PendingUnreadable
from cq.keys import QueueKeys
from cq.keys.queue import bucket_in
from cq.queue.rows import Backlog, read_rows
from cq.store.api import ACCESSED_UNREADABLE, TransactionRead, error_code
from cq.store.own_writes import hides_writes, makes_unreadable, recorded

PENDING_BYTES: Final = 1_000_000
"""Maximum bytes of queued updates of a bucket, and of staged updates, that a read combines."""

_UNUSED_BYTES: Final = 16


@contextmanager
def before_adds(name: str) -> Iterator[None]:
    """A context for reads of queued updates; raises `PendingUnreadable` for an unreadable key.

    `refuse_after_adds` does so before the read, so that the transaction can still commit. This context is for the
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


def refuse_after_adds(
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


def _recorded_buckets(snapshot: TransactionRead, queue: QueueKeys) -> list[tuple[int, int]]:
    """Generation and number of the buckets to which the transaction has added, perhaps in an earlier try."""
    begin, end = queue.notifications()
    written = (each for each in recorded(snapshot) if isinstance(each, bytes) and begin <= each < end)
    return [bucket for each in written if (bucket := bucket_in(begin, each)) is not None]


def read_pending(
    snapshot: TransactionRead, queue: QueueKeys, name: str, generation: int, bucket: int
) -> Backlog:
    """All queued updates of a bucket of the named queue; raises `BacklogTooDeep`."""
    refuse_after_adds(snapshot, queue, name, (generation, bucket))
    backlog = read_rows(snapshot, queue.rows(generation, bucket), PENDING_BYTES)
    if not backlog.at_end:
        raise too_deep(name, f"are queued in bucket {bucket}")
    return backlog


def too_deep(name: str, where: str) -> BacklogTooDeep:
    """The error of a read that would have to combine too many bytes; `where` ends its first clause."""
    return BacklogTooDeep(
        f"more than {PENDING_BYTES:,} bytes of updates of queue {name!r} {where}: "
        "run more workers, or read without pending"
    )
