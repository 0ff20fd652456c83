"""Scheduling of tasks: which worker owns a task, when a notification wakes it, and which thread runs it.

The room does not know what tasks do. It may import telemetry and the rooms of `cq`.
"""
