"""Python values to bytes and back: keys, values, hashes of keys, and JSON.

The room knows nothing of stores, keys of the database or queues. It may import only the words that every room uses:
`cq.errors` and the other modules at the root.
"""
