"""Python values to bytes and back: keys, values, hashes of keys, and JSON.

The room does not depend on stores, on keys of the store or on queues. It may import `cq.errors` and the other modules
at the root that every room uses (runtime, plain_text, arguments).
"""
