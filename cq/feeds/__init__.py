"""Messages by receiver: append, read, groups.

The tasks that workers do for feeds are in `cq.observers.feeds.tasks`. The room may import keys, configuration,
encoding and the store.
"""

from cq.feeds.feed import (
    Feed,
)
from cq.feeds.messages import (
    Message,
)
from cq.feeds.verify import (
    verify_feed,
)

__all__ = [
    "Feed",
    "Message",
    "verify_feed",
]
