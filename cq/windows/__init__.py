"""Running totals over time: what a window adds to a queue, what it reports, and how slices expire.

The room may import the queue and the rooms below it.
"""

from cq.windows.statistics import (
    WindowStatistics,
)
from cq.windows.window import (
    Window,
)

__all__ = [
    "Window",
    "WindowStatistics",
]
