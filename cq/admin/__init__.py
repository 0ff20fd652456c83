"""Changes of a queue as a whole, and its status: configure, purge, delete, rebucket, backfills, audits.

Functions of this room change the configuration; passes then do the work, bucket by bucket. The room may import
windows, the queue and the rooms below them, but no passes.
"""

from cq.admin.audit import (
    audit_findings,
    check_audit,
)
from cq.admin.status import (
    is_drained,
)

__all__ = [
    "audit_findings",
    "check_audit",
    "is_drained",
]
