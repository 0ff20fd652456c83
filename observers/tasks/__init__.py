"""What workers do for every queue: combine, expire, measure, trim, compare with limits.

Each module is one kind of task. The room may import scheduling, telemetry and the rooms of `cq`.
"""
