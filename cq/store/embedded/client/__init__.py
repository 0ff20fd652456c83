"""Transactions with the binding's methods: their options and state, reads through own writes, writes, commit and retry.

The room may import the engine, writes and the binding's types.
"""
