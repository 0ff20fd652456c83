"""Checks of the data that observers keep for a queue: tops, clouds, exports and their tables.

The room may import every observer, and `cq.verify`, whose checks it extends.
"""

from cq.observers.verify.queue import verification

__all__ = [
    "verification",
]
