"""The worker: its loop, its processes, and the list of its tasks.

The room may import every other room of `cq` and of the observers.
"""

from cq.observers.worker.worker import (
    Worker,
)

__all__ = [
    "Worker",
]
