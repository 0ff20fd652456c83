"""The differences between reporting databases: a module for each kind, and their common interface `Dialect`.

The room may import the encoding of values and `cq.errors`, but no room of exports.
"""
