"""Links of queues to other systems: their logs, the worker tasks that send their entries, targets, and operations.

The room may import `cq.observers.scheduling`, `cq.observers.telemetry` and the rooms of `cq`. `cq.links` has its public
names.
"""
