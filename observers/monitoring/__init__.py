"""Monitoring for operators: the status of queues, exports and workers, the store's health, and checks of `cq doctor`.

The room only reads. It may import exports, scheduling and the rooms of `cq`.
"""

from cq.observers.monitoring.diagnosis import doctor
from cq.observers.monitoring.findings import Remark, find_remarks
from cq.observers.monitoring.health_check import health
from cq.observers.monitoring.store_overview import Overview, overview

__all__ = [
    "Overview",
    "Remark",
    "doctor",
    "find_remarks",
    "health",
    "overview",
]
