"""Gives the messages of a feed numbers: 1, 2, 3 ... for each receiver, without a gap, in the order of ids.

A step really reads how far each of its receivers is, so of two steps for one receiver only one commits. What it reads
behind that it reads at one version, and all that is committed later has greater ids: no message ever comes to stand
before one that has its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cq.feeds.config import FeedConfig
from cq.feeds.messages import take
from cq.keys.feed import BUCKETS, ID_BYTES, Range, id_of, mark, split_mark
from cq.observers.feeds.round_robin import RoundRobinTask
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import Database, Transaction
from cq.store.write_sizes import set_bytes

MESSAGES: Final = 1_000
"""How many messages a step numbers at most."""
GATHER_SECONDS: Final = 0.1
"""How long messages come together at most, in a worker that has much to do: nobody waits for numbers to read."""
_RECEIVER_BYTES: Final = 100_000  # of messages that a step reads of one receiver
_STEP_BYTES: Final = 1_000_000  # of all
_WRITTEN_BYTES: Final = 400_000  # of numbers: their keys have the receivers' names


class NumberingTask(RoundRobinTask):
    """The numbers for a bucket of receivers."""

    most = 100
    coalesce_seconds = GATHER_SECONDS

    def __init__(self, db: Database, config: FeedConfig, bucket: int) -> None:
        super().__init__(db, config, bucket)
        self.notification = self.keys.numbering(bucket)

    def __str__(self) -> str:
        return f"numbers of feed {self.config.name!r}, bucket {self.bucket}"

    def noted(self) -> Range:
        return self.keys.all_unnumbered(self.bucket)

    def tell(self) -> None:
        emit("feed_numbered", feed=self.config.name, messages=self.messages)

    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Number the next messages of each of these receivers."""
        limit = MESSAGES // len(names)
        stored = [tr.get(self.keys.numbered(receiver)) for receiver in names]
        marks = [split_mark(each.value) for each in stored]
        ranges = [
            tr.snapshot.get_range(*self.keys.messages(receiver, last), limit=limit + 1)
            for receiver, (last, _) in zip(names, marks, strict=True)
        ]
        left, size = set(), 0
        for receiver, (_, number), found in zip(names, marks, ranges, strict=True):
            if size > _STEP_BYTES:
                left.add(receiver)
                continue
            each = set_bytes(self.keys.number(receiver, number), ID_BYTES)
            rows, more = take(
                found, max(1, min(limit, _WRITTEN_BYTES // len(names) // each)), _RECEIVER_BYTES
            )
            size += sum(len(row.value) for row in rows)
            for at, row in enumerate(rows, number + 1):
                tr.set(self.keys.number(receiver, at), id_of(row.key))
            self.messages += len(rows)
            if rows:
                tr.set(self.keys.numbered(receiver), mark(id_of(rows[-1].key), number + len(rows)))
            if more:
                left.add(receiver)
        return left


def numbering_tasks(db: Database, config: FeedConfig) -> list[Task]:
    """The tasks of a worker for a feed that gives numbers."""
    return [NumberingTask(db, config, bucket) for bucket in range(BUCKETS)] if config.numbers else []
