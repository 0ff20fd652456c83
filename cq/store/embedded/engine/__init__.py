"""The engine of one open file: snapshots, commits, conflicts and watches, shared by all its transactions.

The room may import snapshots, writes, the file and the binding's types.
"""
