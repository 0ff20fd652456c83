"""Running totals over a sliding window of time: adding, reading totals, statistics, and expiry of old updates.

A window belongs to one queue with sums of int. Workers call `expiry` to subtract updates that leave the window. The
room may import the queue and the rooms below it.
"""
