"""Checks of a live queue for damaged or inconsistent data, and repairs of what can be derived.

The checks of what observers keep are in `cq.observers.verify.queue`. The room may import every other room of `cq`
except feeds and cells.
"""

from cq.verify.queue import verify

__all__ = [
    "verify",
]
