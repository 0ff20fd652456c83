"""What a transaction has written and read, in memory, until its commit.

The room may import the binding's types.
"""
