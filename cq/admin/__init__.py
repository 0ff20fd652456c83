"""Operations on a whole queue: observers, pauses, limits, purge, delete, rebucket, backfills, audits, status.

Functions of this room change the configuration, and passes then do the work, bucket by bucket. The room may import
windows, the queue and the rooms below them, but no passes.
"""

from typing import TYPE_CHECKING

from cq.late import late

if TYPE_CHECKING:
    from cq.admin.audit import audit_findings, check_audit
    from cq.admin.configure import put_observer, rebuild_observer, remove_observer
    from cq.admin.flags import pause, prioritize, resume
    from cq.admin.purging import delete, purge
    from cq.admin.queue_status import QueueStatus, is_drained, status
    from cq.admin.rebucketing import rebucket
    from cq.config.queue import QueueConfig
    from cq.observer import ObserverSpec
    from cq.queue.limits import limit

__all__ = [
    "ObserverSpec",
    "QueueConfig",
    "QueueStatus",
    "audit_findings",
    "check_audit",
    "delete",
    "is_drained",
    "limit",
    "pause",
    "prioritize",
    "purge",
    "put_observer",
    "rebucket",
    "rebuild_observer",
    "remove_observer",
    "resume",
    "status",
]

__getattr__ = late(
    __name__,
    {
        "cq.admin.audit": ("audit_findings", "check_audit"),
        "cq.admin.configure": ("put_observer", "rebuild_observer", "remove_observer"),
        "cq.admin.flags": ("pause", "prioritize", "resume"),
        "cq.admin.purging": ("delete", "purge"),
        "cq.admin.queue_status": ("QueueStatus", "is_drained", "status"),
        "cq.admin.rebucketing": ("rebucket",),
        "cq.config.queue": ("QueueConfig",),
        "cq.observer": ("ObserverSpec",),
        "cq.queue.limits": ("limit",),
    },
)
