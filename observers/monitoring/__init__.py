"""Monitoring for operators: the status of queues, exports and workers, the store's health, and checks of `cq doctor`.

The room only reads. It may import exports, scheduling and the rooms of `cq`.
"""
