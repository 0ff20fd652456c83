"""Numbers of messages: 1, 2, 3 ... for each receiver, without gaps, in the order of ids.

A step reads the last number of each of its receivers with a conflict, so of two steps for one receiver only one
commits. It reads the next messages at one version, and all later commits have greater ids. So no message ever appears
before a numbered one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cq.feeds.messages import take
from cq.keys.feed import ID_BYTES, Range, id_of, mark, split_mark
from cq.observers.feeds.round_robin import RoundRobinTask
from cq.store.api import Transaction
from cq.store.sizes import set_bytes

MESSAGES: Final = 1_000
"""Limit of messages that a step numbers."""
_RECEIVER_BYTES: Final = 100_000  # limit of the messages that a step reads of one receiver
_STEP_BYTES: Final = 1_000_000  # limit of all messages that a step reads
# Limit of the numbers that a step writes: their keys contain the receivers' names.
_WRITTEN_BYTES: Final = 400_000


class NumberingTask(RoundRobinTask):
    """Number the messages of a bucket of receivers."""

    event = "feed_numbered"
    names_per_step = 100

    def __str__(self) -> str:
        return f"numbers of feed {self.config.name!r}, bucket {self.bucket}"

    def places(self) -> tuple[bytes, Range]:
        return self.keys.numbering(self.bucket), self.keys.all_unnumbered(self.bucket)

    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Number the next messages of each of these receivers; returns the receivers with more."""
        limit = MESSAGES // len(names)
        # With a conflict: it is the lock of the receiver. The messages need none, as later ones sort after them.
        stored = [tr.get(self.keys.numbered(receiver)) for receiver in names]
        marks = [split_mark(each.value) for each in stored]
        ranges = [
            tr.snapshot.get_range(*self.keys.messages(receiver, last), limit=limit + 1)
            for receiver, (last, _) in zip(names, marks, strict=True)
        ]
        unfinished, size = set(), 0
        for receiver, (_, number), found in zip(names, marks, ranges, strict=True):
            if size > _STEP_BYTES:
                unfinished.add(receiver)
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
                unfinished.add(receiver)
        return unfinished
