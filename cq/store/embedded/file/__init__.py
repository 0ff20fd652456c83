"""The SQLite file and its lock file: who may open them, and which process may commit.

The room imports only the binding's types.
"""
