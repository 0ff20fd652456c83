"""The feeds of a store: their status, and the work of workers for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cq.errors import CorruptData, FeedNotConfigured
from cq.feeds.config import FeedConfig, feed_names, read_feed_config
from cq.keys.feed import BUCKETS, FeedKeys
from cq.observers.feeds.deliver import DeliveryTask
from cq.observers.feeds.round_robin import NumberingTask
from cq.observers.feeds.trim import FeedTrimTask
from cq.observers.scheduling.members import DELIVER, TaskId
from cq.observers.scheduling.task import Task, WorkPart
from cq.store.api import Database, TransactionRead

MAX_COUNTED: Final = 1_000
"""Limit of receivers or groups with work that the status counts in each bucket."""


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """A feed with its remaining work.

    Attributes:
        config: the feed's configuration.
        to_number: number of receivers that have messages without numbers.
        to_deliver: number of groups that have messages to deliver.
    """

    config: FeedConfig
    to_number: int
    to_deliver: int


def read_status(tr: TransactionRead, name: str) -> FeedStatus:
    """Return the status of a feed; raises `FeedNotConfigured`."""
    return _status(tr, read_feed_config(tr, name))


def read_all(tr: TransactionRead) -> list[FeedStatus]:
    """Return the status of all feeds with a readable configuration, by name."""
    return [_status(tr, config) for config in readable_feeds(tr)]


def feeds_with_work(tr: TransactionRead) -> list[str]:
    """Return the names of the readable feeds with messages that workers must deliver or number."""
    return [each.config.name for each in read_all(tr) if each.to_number or each.to_deliver]


def readable_feeds(tr: TransactionRead) -> list[FeedConfig]:
    """Return the readable configurations of all feeds: applications that use another one get its error."""
    found = []
    for name in feed_names(tr):
        with suppress(FeedNotConfigured, CorruptData):
            found.append(read_feed_config(tr, name))
    return found


def _status(tr: TransactionRead, config: FeedConfig) -> FeedStatus:
    keys = FeedKeys(config.name)
    counted = [
        [tr.get_range(*bounds(bucket), limit=MAX_COUNTED) for bucket in range(BUCKETS)]
        for bounds in (keys.all_unnumbered, keys.all_undelivered)
    ]
    to_number, to_deliver = (sum(len(rows.to_list()) for rows in ranges) for ranges in counted)
    return FeedStatus(config, to_number, to_deliver)


def feed_part(db: Database, config: FeedConfig) -> WorkPart:
    """The work of a worker for a feed; deliveries make numbering work, so the tasks of groups come first."""

    def make() -> list[Task]:
        tasks: list[Task] = [DeliveryTask(db, config, bucket) for bucket in range(BUCKETS)]
        if config.numbers:
            tasks += [NumberingTask(db, config, bucket) for bucket in range(BUCKETS)]
        return [*tasks, FeedTrimTask(db, config)] if config.removes else tasks

    return WorkPart(TaskId(DELIVER, config.name, 0), config, make)
