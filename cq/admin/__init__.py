"""Operations on a whole queue: configure, purge, delete, rebucket, backfills, audits, status.

Functions of this room change the configuration, and passes then do the work, bucket by bucket. The room may import
windows, the queue and the rooms below them, but no passes.
"""

from cq.admin.audit import (
    audit_findings,
    check_audit,
)
from cq.admin.queue_status import (
    QueueStatus,
    is_drained,
    status,
)

__all__ = [
    "QueueStatus",
    "audit_findings",
    "check_audit",
    "is_drained",
    "status",
]
