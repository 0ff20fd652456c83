"""Updates with a time of their own, and reads of the values in a sliding window.

Passes add updates to the slices of a window, and workers delete slices that have left it; both are in rooms above. This
room may import the queue and the rooms below it.
"""

from cq.windows.window import (
    Window,
    WindowStatistics,
)

__all__ = [
    "Window",
    "WindowStatistics",
]
