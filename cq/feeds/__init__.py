"""Message feeds: append and read messages by receiver, groups of receivers, and a check of a feed's data.

Workers deliver, number and trim messages by the tasks of `cq.observers.feeds`. The room may import keys,
configuration, encoding and the store; it does not import queues.
"""

from cq.feeds.feed import Feed
from cq.feeds.messages import FeedPage, Message
from cq.feeds.verify import verify_feed

__all__ = [
    "Feed",
    "FeedPage",
    "Message",
    "verify_feed",
]
