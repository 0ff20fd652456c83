"""Adds to a queue and reads of it, inside the application's transactions; and the rows of its buckets.

The room also has the queue's limits, operation ids, updates set aside, missed reports, and the state of each bucket. It
may import configuration, keys, encoding and the store, but no passes or workers.
"""

from cq.queue.combine_queue import (
    Page,
)
from cq.queue.set_aside import (
    drop_aside,
    read_aside,
    retry_aside,
)

__all__ = [
    "Page",
    "drop_aside",
    "read_aside",
    "retry_aside",
]
