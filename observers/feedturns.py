"""Work on receivers or groups of a feed that take turns: each gets a bounded step, and then the others come.

Whoever has work is noted under a key of its own, with a value that changes with each append. A step takes some of
those notes in turn, does a bounded part for each in one transaction, and clears the notes of those that are done, if
they are still the ones that were read. So one that is flooded has its share of each round and delays nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from cq.feedkeys import FeedKeys, Range
from cq.keys import after
from cq.observers.feedconfig import FeedConfig
from cq.observers.jobs import Task
from cq.observers.runner import DONE
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.transact import transact

_LATER: Final = 0.0


class Turns(Task):
    """A bucket of receivers or groups, which take turns; a task for a worker.

    Args:
        db: a database of either store.
        config: of the feed.
        bucket: which one.

    Attributes:
        most: how many take their turn in one transaction.
    """

    notification: bytes
    most: int

    def __init__(self, db: Database, config: FeedConfig, bucket: int) -> None:
        self.config, self.bucket = config, bucket
        self.keys = FeedKeys(config.name)
        self._db = db
        self._begin, self._end = self.noted()
        self._place = self._begin
        self._round: bytes | None = None  # the notification that was there when this round began
        self._are_left = False  # some of this round have more to do

    @abstractmethod
    def noted(self) -> Range:
        """The range of the keys that say who has work."""

    @abstractmethod
    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Do a part for each of these, encoded as in their notes; returns those that have more to do.

        All that conflicts must be read through the transaction itself; a retry after an unknown result calls it again.
        """

    def run(self) -> float:
        """One step; see `Task`. Raises the store's `FDBError`; the step can then be taken again."""
        notification, notes, left = transact(self._db, self._step)
        if self._place == self._begin:
            self._round, self._are_left = notification, False
        self._are_left |= bool(left)
        if len(notes) == self.most:
            self._place = after(notes[-1].key)
            return _LATER
        self._place = self._begin
        if self._are_left:
            return _LATER
        if (begun_with := self._round) is not None:
            # All that was noted when the round began is done: whoever has come since has changed the notification.
            transact(self._db, lambda tr: tr.compare_and_clear(self.notification, begun_with))
        return DONE

    def _step(self, tr: Transaction) -> tuple[bytes | None, list[KeyValue], set[bytes]]:
        notification = tr.snapshot.get(self.notification)
        notes = tr.snapshot.get_range(
            self._place, self._end, limit=self.most, streaming_mode=WANT_ALL
        ).to_list()
        left = self.serve(tr, [note.key[len(self._begin) :] for note in notes]) if notes else set()
        for note in notes:
            if note.key[len(self._begin) :] not in left:
                tr.compare_and_clear(note.key, note.value)
        return notification.value, notes, left
