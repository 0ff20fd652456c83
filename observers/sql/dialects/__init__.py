"""The differences between reporting databases, one module for each.

The room may import the encoding of values, and nothing of exports.
"""
