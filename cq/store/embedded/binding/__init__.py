"""The types and numbers of the official FoundationDB binding: keys, errors, futures, atomic operations, retry delays.

All other rooms of the embedded store use them. The room imports no other part of the embedded store.
"""
