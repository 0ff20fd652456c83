"""Checks a queue's audit: reports a difference for each unbalanced bucket."""

from __future__ import annotations

from collections.abc import Iterator

from cq.admin.audit import check_audit
from cq.config.queue import read_config
from cq.keys.audit import AuditKeys
from cq.store.transact import transact
from cq.verify.verification import Difference, Verification


def check_audit_balance(verification: Verification) -> Iterator[Difference]:
    """Check the audit, if the queue has one, each of its buckets at one read version."""
    verification.part = "audit"
    name = verification.name
    audit = transact(verification.db, lambda tr: read_config(tr.snapshot, name)).audit
    if audit is None:
        return
    for each in check_audit(verification.db, name):
        if each.unknown:
            verification.note(str(each))
        elif not each.is_balanced:
            where = AuditKeys(name).added(audit.generation, each.bucket)
            yield Difference("audit", where, str(each))
