"""How a task gets a thread, a notification and an owner among the workers.

The room does not know what tasks do. It may import telemetry and the rooms of `cq`.
"""
