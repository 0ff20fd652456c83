"""Links of queues to other systems: functions for `cq.configure(..., links=[...])`, and the base of targets.

    cq.configure(db, "words", links=[cq.links.table("word_counts"), cq.links.webhook("CQ_HOOK_URL")])

A target of one's own is a class with the base `Target`, which `App.target` declares.
"""

from typing import TYPE_CHECKING

from cq.late import late
from cq.observers.links.log import LinkEntry
from cq.observers.links.observer import add
from cq.observers.links.spec import app, kafka, parse_link, queue, table, webhook
from cq.observers.links.target import (
    CannotSend,
    Changes,
    LinkFailed,
    LinkStopped,
    Source,
    Target,
    TargetRefuses,
    in_json,
    refuse_late_sweep,
)

if TYPE_CHECKING:
    from cq.observers.links.sql.table import Columns

__all__ = [
    "CannotSend",
    "Changes",
    "Columns",
    "LinkEntry",
    "LinkFailed",
    "LinkStopped",
    "Source",
    "Target",
    "TargetRefuses",
    "add",
    "app",
    "in_json",
    "kafka",
    "parse_link",
    "queue",
    "refuse_late_sweep",
    "table",
    "webhook",
]


__getattr__ = late(__name__, {"cq.observers.links.sql.table": ("Columns",)})
"""`Columns` needs SQLAlchemy."""
