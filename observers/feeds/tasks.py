"""The feeds of a store: their status, and the jobs of workers for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cq.errors import CorruptData, FeedNotConfigured
from cq.feeds.config import FeedConfig, feed_names, read_feed_config
from cq.keys.feed import BUCKETS, FeedKeys
from cq.observers.feeds.deliver import DeliveryTask
from cq.observers.feeds.number import NumberingTask
from cq.observers.feeds.trim import FeedTrimTask
from cq.observers.scheduling.members import TaskId
from cq.observers.scheduling.task import Job, Task
from cq.store.api import Database, TransactionRead
from cq.store.transact import transact

ROLE: Final = "deliver"
"""The role of workers that do the tasks of feeds."""
MOST_COUNTED: Final = 1_000
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
    return [_status(tr, config) for config in _readable(tr)]


def _readable(tr: TransactionRead) -> list[FeedConfig]:
    """Return the readable configurations of all feeds: applications that use another one get its error."""
    found = []
    for name in feed_names(tr):
        with suppress(FeedNotConfigured, CorruptData):
            found.append(read_feed_config(tr, name))
    return found


def _status(tr: TransactionRead, config: FeedConfig) -> FeedStatus:
    keys = FeedKeys(config.name)
    counted = [
        [tr.get_range(*bounds(bucket), limit=MOST_COUNTED) for bucket in range(BUCKETS)]
        for bounds in (keys.all_unnumbered, keys.all_undelivered)
    ]
    to_number, to_deliver = (sum(len(rows.to_list()) for rows in ranges) for ranges in counted)
    return FeedStatus(config, to_number, to_deliver)


class FeedJobs:
    """The jobs of a worker for all configured feeds.

    Args:
        db: a database of either store.
        names: the feeds and queues to work on; empty: all.
    """

    def __init__(self, db: Database, names: Sequence[str]) -> None:
        self._db, self._names = db, names
        self._open: dict[FeedConfig, list[Job]] = {}

    @property
    def jobs(self) -> list[Job]:
        """All jobs; those of groups before those of numbers, since deliveries make numbering work."""
        return [job for jobs in self._open.values() for job in jobs]

    def load(self) -> list[Job]:
        """Read the configurations of all feeds, and update the jobs; returns the removed jobs."""
        readable = transact(self._db, lambda tr: _readable(tr.snapshot))
        found = [config for config in readable if not self._names or config.name in self._names]
        gone = [job for config, jobs in self._open.items() if config not in found for job in jobs]
        self._open = {config: self._open.get(config) or self._made(config) for config in found}
        return gone

    def _made(self, config: FeedConfig) -> list[Job]:
        tasks: list[Task] = [DeliveryTask(self._db, config, bucket) for bucket in range(BUCKETS)]
        if config.numbers:
            tasks += [NumberingTask(self._db, config, bucket) for bucket in range(BUCKETS)]
        if config.removes:
            tasks.append(FeedTrimTask(self._db, config))
        return [Job(task, TaskId(ROLE, config.name, number)) for number, task in enumerate(tasks)]
