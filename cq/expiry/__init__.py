"""Expiry of keys without updates: their times, the index of these, the due keys, and the times of former values.

Passes keep the index and delete due keys. Workers notify the buckets of due keys. The room may import the
queue and the rooms below it.
"""
