"""Reads of a bucket's queued updates, for reads that include updates not yet combined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cq import runtime
from cq.errors import BacklogTooDeep, PendingUnreadable
from cq.keys import QueueKeys
from cq.queue.rows import Backlog, read_rows
from cq.store.api import ACCESSED_UNREADABLE, TransactionRead, error_code
from cq.store.own_writes import hides_writes

PENDING_BYTES: Final = 1_000_000
"""Maximum bytes of queued updates of a bucket, and of staged updates, that a read combines."""

_UNUSED_BYTES: Final = 16


@contextmanager
def before_adds(name: str) -> Iterator[None]:
    """A context for reads of queued updates; raises `PendingUnreadable` after an add in the same transaction."""
    try:
        yield
    except Exception as error:
        if error_code(error) == ACCESSED_UNREADABLE:
            raise PendingUnreadable(
                f"queued updates of queue {name!r} cannot be read after an add in the same transaction, "
                "as their place in the commit order is not known yet: read first, or in a separate transaction"
            ) from error
        raise


def refuse_if_hidden(snapshot: TransactionRead, queue: QueueKeys, name: str, added: str | bytes) -> None:
    """Raise `PendingUnreadable` if the transaction has an add that its options hide from its own reads.

    Args:
        added: the name of the queue, or the key of a bucket's notification, as `write_updates` notes them.
    """
    if hides_writes(snapshot, added, queue.document(runtime.token_bytes(_UNUSED_BYTES))):
        raise PendingUnreadable(
            f"queued updates of queue {name!r} cannot be read after an add in the same transaction, which hides its "
            "own writes (read_your_writes_disable or snapshot_ryw_disable): read first, or in a separate transaction"
        )


def read_pending(
    snapshot: TransactionRead, queue: QueueKeys, name: str, generation: int, bucket: int
) -> Backlog:
    """All queued updates of a bucket of the named queue; raises `BacklogTooDeep`."""
    refuse_if_hidden(snapshot, queue, name, queue.notification(generation, bucket))
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
