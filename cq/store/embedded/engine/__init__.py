"""The engine of one open file: snapshots, commits, conflicts and watches, shared by all its transactions.

A pool of SQLite connections gives each transaction a snapshot and expires old ones. Transactions submit their commits
here; one thread at a time commits a group. The room may import writes, the file and the binding's types.
"""
