"""Tasks of workers for feeds (deliver, number and trim messages), and the observer that appends changes to a feed.

The room may import `cq.feeds`, scheduling and telemetry.
"""

from cq.observers.feeds.observer import feed_spec

__all__ = [
    "feed_spec",
]
