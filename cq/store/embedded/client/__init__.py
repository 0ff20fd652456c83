"""The state of one transaction: its options, what it has read, and reads through its own writes.

The room may import the engine, snapshots, writes and the binding's types.
"""
