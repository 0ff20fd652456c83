"""Running totals over a sliding window of time, and updates with a time of their own in queues with a roll-up.

A window belongs to one queue whose updates have inverses. Workers call `expiry` to subtract updates that leave the
window. The room may import the queue and the rooms below it.
"""
