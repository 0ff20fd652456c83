"""Ways to add many updates: an emitter that merges increments in memory, documents, files of JSON lines, and logs.

All of them call `CombineQueue.add`. The room may import windows, the queue and the rooms below them.
"""

from typing import TYPE_CHECKING

from cq.late import late

if TYPE_CHECKING:
    from cq.intake.access_log import AccessLogFormat, Visit
    from cq.intake.documents import Documents
    from cq.intake.json_lines import LoadedLines, add_jsonl
    from cq.intake.lines import AddedLines
    from cq.intake.logs import LogFollower

__all__ = [
    "AccessLogFormat",
    "AddedLines",
    "Documents",
    "LoadedLines",
    "LogFollower",
    "Visit",
    "add_jsonl",
]

__getattr__ = late(
    __name__,
    {
        "cq.intake.access_log": ("AccessLogFormat", "Visit"),
        "cq.intake.documents": ("Documents",),
        "cq.intake.json_lines": ("LoadedLines", "add_jsonl"),
        "cq.intake.lines": ("AddedLines",),
        "cq.intake.logs": ("LogFollower",),
    },
)
