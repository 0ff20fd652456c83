"""The configuration of a queue: its shape, its window, the features that it needs, and the cache of configurations.

The id of the store is here, too. The room may import `cq.keys`, `cq.encoding` and `cq.store`. `cq.admin` changes
configurations.
"""
