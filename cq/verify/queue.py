"""Checks of a live queue, without the data of its observers; `cq.observers.verify.queue` adds their checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cq.admin.audit import check_bucket
from cq.bucket.attempt_notes import parse_note
from cq.combiners import Combiner
from cq.config.flags import Flags
from cq.keys.audit import AuditKeys
from cq.queue.limits import Full
from cq.store.api import Database
from cq.verify import buckets, queued, rows, store, values
from cq.verify.layout import check_stamp
from cq.verify.piece import Difference, RowCheck, readable, set_row_aside
from cq.verify.verification import Check, Verification, every_row

PARTS: Final[Mapping[str, Sequence[RowCheck]]] = {
    "a": [RowCheck("attempt", "g4 bucket4 worker8", readable(parse_note))],
    "b": [RowCheck("state-lost", "g4 bucket4", buckets.check_state)],
    "A": [RowCheck("answer", None, rows.check_answer)],
    "d": [RowCheck("value-key", "h4 key", values.check_value, values.set_key_aside)],
    "e": [],
    "g": [],
    "h": [],
    "i": [RowCheck("emitter", "emitter10", queued.check_emitter)],
    "j": [],
    "k": [RowCheck("document", "length2 id", readable(rows.parse_parts), None)],
    "l": [RowCheck("load", None, rows.check_load, None)],
    "m": [RowCheck("missed-key", None, rows.check_missed)],
    "n": [RowCheck("notification", "g4 bucket4", queued.check_notification)],
    "o": [RowCheck("marker", "length2 id versionstamp10", queued.check_marker)],
    "q": [RowCheck("expiry-key", None, values.check_expiry)],
    "r": [RowCheck("received", "store16 bucket4 link", readable(rows.parse_received), None)],
    "s": [RowCheck("staged-key", "h4 key", values.check_staged, values.set_key_aside)],
    "t": [RowCheck("observer-data", "g4 data?", rows.check_observer_data)],
    "u": [
        RowCheck(
            "row-unreadable",
            "g4 bucket4 versionstamp10 counter8",
            queued.check_row,
            queued.set_unreadable_aside,
        )
    ],
    "v": [RowCheck("refused", None, rows.check_refused)],
    "w": [RowCheck("document", "length2 id part4 piece4", rows.check_counts, None)],
    "x": [
        RowCheck(
            "aside-unreadable",
            "h4 length2 key? versionstamp10 n4",
            values.check_aside,
            set_row_aside("set aside before, but unreadable"),
        )
    ],
    "y": [RowCheck("observer-current", None, rows.check_current, rows.forget_current)],
    "z": [RowCheck("observer-published", None, rows.check_published)],
    "config": [],
    "flags": [RowCheck("flags", "", readable(Flags.from_bytes), rows.pause)],
    "full": [RowCheck("full", "", readable(Full.from_bytes))],
    "purge": [RowCheck("purge", "", readable(check_stamp), None)],
}
"""{part of the key layout: the checks of its rows}; `cq.observers.verify.queue` adds those of observers' data."""


def check_audit(verification: Verification) -> Iterator[Difference]:
    """Check the audit, if the queue has one, each of its buckets at one read version."""
    name, audit = verification.name, verification.config().audit
    if audit is None:
        return
    for bucket in range(audit.buckets):
        found = check_bucket(verification.db, name, audit, bucket)
        if found.unknown:
            verification.note(str(found))
        elif not found.is_balanced:
            yield Difference("audit", AuditKeys(name).added(audit.generation, bucket), str(found))


CHECKS: Final[Mapping[str, Check]] = {
    "rows": every_row(PARTS),
    "buckets": buckets.check_buckets,
    "audit": check_audit,
    "store": store.check_store,
}
"""The checks, in this order: repairs move rows before the check whether their buckets have notifications."""


def verify(
    db: Database, name: str, *, repair: bool = False, combiner: Combiner | None = None
) -> Iterator[Difference]:
    """Return the differences in a queue's keys and in those of the store; see `cq.verify.kinds.KINDS`.

    Exact on a store in use, as keys are compared at one read version. Modifies the store only to repair.

    Args:
        db: a database of either store.
        name: the queue.
        repair: whether to repair what can be derived, each difference in the transaction that finds it.
        combiner: the queue's combiner, if it is not one of cq's; without it empty values are not found.

    Raises:
        QueueNotConfigured: there is no such queue.
        CodeMismatch: a newer version of cq has configured the queue.
        FDBError: the store fails, and a retry cannot help.
    """
    return Verification(db, name, CHECKS, repair=repair, combiner=combiner).run()
