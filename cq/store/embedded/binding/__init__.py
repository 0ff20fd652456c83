"""The types and numbers of the official FoundationDB binding: keys, errors, futures, atomic operations.

The room imports no other part of the embedded store.
"""
