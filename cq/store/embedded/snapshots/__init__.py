"""Reads of the file at a version, and the latest version of the store.

The room may import writes, the file and the binding's types.
"""
