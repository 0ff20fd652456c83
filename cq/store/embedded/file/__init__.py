"""The SQLite file and its lock file: who may open them, and which process may commit.

The room also knows which files this process has open. It may import only the binding's types.
"""
