"""Answers to an operator's questions: status of all queues, health, and the checks of `cq doctor`.

The room only reads. It may import exports, scheduling and the rooms of `cq`.
"""
