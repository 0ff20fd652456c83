"""The inside of one transaction: its options and state, its reads through its own writes, and its commit.

The classes of `cq.store.embedded` add the binding's methods. The room may import the engine, snapshots, writes and the
binding's types.
"""
