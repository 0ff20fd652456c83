"""Adding to a queue and reading it, inside the transactions of the application; and the rows of its buckets.

It has the queue's limits, operation ids, updates and reports that were set aside, and the state of each bucket. The
room may import configuration, keys, encoding and the store. It knows nothing of passes or workers.
"""

from cq.queue.combine_queue import (
    CombineQueue,
    Page,
)
from cq.queue.limits import (
    limit,
)
from cq.queue.set_aside import (
    drop_aside,
    read_aside,
    retry_aside,
)

__all__ = [
    "CombineQueue",
    "Page",
    "drop_aside",
    "limit",
    "read_aside",
    "retry_aside",
]
