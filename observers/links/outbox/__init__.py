"""Outboxes: tables in applications' databases whose rows workers add to queues, each exactly once.

`cq.outbox` adds rows; this room has the table, the task that moves the rows, and what operators do with both. It may
import `cq.observers.links` and `cq.observers.links.sql`.
"""
