"""An observer and an exporter that forward changes to a queue of another store.

The room may import `cq.observers.sql` and `cq.observers.export`.
"""

from cq.observers.forward.spec import (
    forward_spec,
)

__all__ = [
    "forward_spec",
]
