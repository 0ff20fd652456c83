"""Answers to an operator's questions: status of all queues, health, and the checks of `cq doctor`.

The room only reads. It may import exports, scheduling and the rooms of `cq`.
"""

from cq.observers.monitoring.doctor import (
    doctor,
)
from cq.observers.monitoring.health import (
    health,
)
from cq.observers.monitoring.overview import (
    overview,
)

__all__ = [
    "doctor",
    "health",
    "overview",
]
