"""Checks of a live queue, without the data of its observers; `cq.observers.verify.queue` adds their checks."""

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
"""The checks, in this order: repairs move rows before the check whether their buckets have notifications."""


def verify(
    db: Database,
    name: str,
    *,
    repair: bool = False,
    combiner: Combiner | None = None,
    progress: Callable[[VerifyProgress], object] = lambda progress: None,
) -> Iterator[Difference]:
    """Return the differences in a queue's keys and in those of the store; see `cq.verify.kinds.KINDS`.

    Exact on a store in use, as keys are compared at one read version. Modifies the store only to repair.

    Args:
        db: a database of either store.
        name: the queue.
        repair: whether to repair what can be derived, each difference in the transaction that finds it.
        combiner: the queue's combiner, if it is not one of cq's; without it empty values are not found.
        progress: called after each piece.

    Raises `QueueNotConfigured`, `CodeMismatch` for a queue that a newer version of cq has configured, and the store's
    `FDBError` if a retry cannot help.
    """
    return Verification(db, name, repair=repair, combiner=combiner, parts=PARTS, progress=progress).run()
