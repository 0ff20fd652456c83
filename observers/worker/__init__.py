"""The worker: its loop, its list of tasks, its reports, and the settings of a process for one.

The room may import every other room of `cq` and of the observers, except verify.
"""

from cq.observers.worker.worker import Worker

__all__ = [
    "Worker",
]
