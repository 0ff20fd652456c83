"""The configuration of a queue: its shape, its window, the features that it needs, and how processes cache it.

The id of the store is here, too, because configurations refer to it. The room may import keys, encoding and the store;
changing a configuration is the task of `cq.admin`.
"""
