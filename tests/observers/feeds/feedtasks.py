"""The tasks of one kind for a feed."""

from __future__ import annotations

from typing import Any

from cq.feeds.config import FeedConfig
from cq.keys.feed import BUCKETS
from cq.observers.feeds.deliver import DeliveryTask
from cq.observers.feeds.round_robin import NumberingTask
from cq.observers.feeds.trim import FeedTrimTask


def delivering_tasks(db: Any, config: FeedConfig) -> list[DeliveryTask]:
    return [DeliveryTask(db, config, bucket) for bucket in range(BUCKETS)]


def numbering_tasks(db: Any, config: FeedConfig) -> list[NumberingTask]:
    return [NumberingTask(db, config, bucket) for bucket in range(BUCKETS)]


def trimming_tasks(db: Any, config: FeedConfig) -> list[FeedTrimTask]:
    return [FeedTrimTask(db, config)]
