"""The writes and read conflicts of one transaction, kept in memory until its commit.

Reads of the transaction see its writes; the engine checks its read conflicts and applies its changes. The room may
import only the binding's types.
"""
