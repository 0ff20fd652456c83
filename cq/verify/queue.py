"""Verifying a queue while it is in use: without what its observers keep, which `cq.observers.verify.queue` looks at,
too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cq.combiners import Combiner
from cq.store.api import Database
from cq.verify.audit import check_audit_balance
from cq.verify.buckets import check_buckets
from cq.verify.rows import HANDLERS
from cq.verify.store import check_configuration, check_store
from cq.verify.verification import Difference, Part, Verification, VerifyProgress, every_row
from cq.verify.window import check_window_totals

__all__ = ["PARTS", "Difference", "Verification", "VerifyProgress", "verify"]

PARTS: Final[tuple[Part, ...]] = (
    check_configuration,
    every_row(HANDLERS),
    check_buckets,
    check_audit_balance,
    check_window_totals,
    check_store,
)
"""What is looked at, in this order: rows are moved before it is looked whether workers are told of them."""


def verify(
    db: Database,
    name: str,
    *,
    repair: bool = False,
    combiner: Combiner | None = None,
    progress: Callable[[VerifyProgress], object] = lambda progress: None,
) -> Iterator[Difference]:
    """What in a queue's keys, and in the store's own, cannot be so; see `cq.verify.kinds.KINDS`.

    Exact on a store in use: what is compared is read at one version. Changes nothing unless it is to repair.

    Args:
        db: a database of either store.
        name: the queue.
        repair: whether to mend what can be derived, each difference in the transaction that finds it.
        combiner: the queue's, if it is one of your own; without it empty values are not found.
        progress: called after each piece.

    Raises `QueueNotConfigured`, `CodeMismatch` for a queue that a newer version of cq has configured, and the store's
    `FDBError` when the store cannot go on.
    """
    return Verification(db, name, repair=repair, combiner=combiner, parts=PARTS, progress=progress).run()
