"""The tasks of workers for every queue: combine, expire, measure, trim operation ids, enforce limits.

The room may import `cq.observers.scheduling`, `cq.observers.telemetry`,
`cq.observers.links` (for measuring) and the rooms of `cq`.
"""
