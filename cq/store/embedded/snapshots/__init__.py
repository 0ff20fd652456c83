"""Read snapshots of the file, and the latest version of the store.

A pool of SQLite connections gives each transaction a snapshot and expires old ones. The room may import writes, the
file and the binding's types.
"""
