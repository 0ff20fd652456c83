"""The worker: its loop, its list of tasks, its reports, and the processes of `cq worker`.

The room may import every other room of `cq` and of the observers, except verify.
"""

from cq.observers.worker.worker import (
    Worker,
)

__all__ = [
    "Worker",
]
