"""Commits, conflicts and watches of one open file, shared by all its transactions.

The room may import snapshots, writes, the file and the binding's types.
"""
