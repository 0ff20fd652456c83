"""Ways to add many updates: an emitter that merges increments in memory, documents, and files of JSON lines.

All of them call `CombineQueue.add`. The room may import windows, the queue and the rooms below them.
"""

from cq.intake.documents import (
    Documents,
)
from cq.intake.json_lines import (
    LoadedLines,
    add_jsonl,
)

__all__ = [
    "Documents",
    "LoadedLines",
    "add_jsonl",
]
