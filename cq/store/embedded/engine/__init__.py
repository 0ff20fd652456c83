"""The engine of one open file: snapshots, commits, conflicts and watches, shared by all its transactions.

Transactions submit their commits here; one thread at a time commits a group. The room may import snapshots, writes, the
file and the binding's types.
"""
