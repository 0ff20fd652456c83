"""Forwarding of a queue: an observer and an exporter that add its changes to a queue of another store.

The room may import `cq.observers.export` and the rooms below it.
"""

from cq.observers.forward.observer import (
    forward_spec,
)

__all__ = [
    "forward_spec",
]
