"""A follower of a published cloud: one watch per process, for any number of threads and open pages that wait."""

from __future__ import annotations

from typing import Final

from cq.observers.top.cloud import Cloud, CloudReader
from cq.store.api import Database, Transaction, Void
from cq.store.follower import StoreFollower

SAFETY_SECONDS: Final = 30.0
"""How often the store is read even if the watch does not fire."""


class CloudFollower(StoreFollower[Cloud]):
    """The newest cloud of a queue, in memory, for all threads and tasks of a process.

    Create one for each cloud and process, after forking, and close it at the end; it is also a context manager. While
    the store cannot be read, `latest` stays the same, and the read is retried, at least every 10 s.

    Args:
        db: a database of either store.
        name: the queue's name.
        group: whose cloud, for a queue with groups.

    Attributes:
        latest: the newest cloud known to this process, None before the first.
        problem: why the cloud cannot be read now; empty if it can.
    """

    _has_watch = True

    def __init__(self, db: Database, name: str, group: str | None = None) -> None:
        self._reader = CloudReader(name, group)
        super().__init__(db, f"the cloud of queue {name!r}", SAFETY_SECONDS)

    def _fetch(self, tr: Transaction) -> tuple[Cloud | None, Void | None]:
        latest = self.latest
        return self._reader.newer(tr, *((0, None) if latest is None else (latest.version, latest.created)))
