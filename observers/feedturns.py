"""Work on receivers or groups of a feed that take turns: each gets a bounded step, and then the others come.

Whoever has work is noted under a key of its own, with a value that changes with each append. A step takes some of
those notes in turn, does a bounded part for each in one transaction, and clears the notes of those that are done, if
they are still the ones that were read. So one that is flooded has its share of each round and delays nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from cq.errors import CorruptData
from cq.feedkeys import FeedKeys, Range
from cq.keys import after
from cq.observers.feedconfig import FeedConfig
from cq.observers.jobs import Task
from cq.observers.runner import DONE
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.transact import transact

TROUBLE_SECONDS: Final = 1.0
"""After how long those who could not be served are tried again."""
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
        self._at_once = self.most
        self._notes: list[KeyValue] = []
        self._problem = ""

    @abstractmethod
    def noted(self) -> Range:
        """The range of the keys that say who has work."""

    @abstractmethod
    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Do a part for each of these, encoded as in their notes; returns those that have more to do.

        All that conflicts must be read through the transaction itself; a retry after an unknown result calls it again.
        """

    def run(self) -> float:
        """One step; see `Task`. Raises the store's `FDBError`; the step can then be taken again.

        Whoever has something stored that cq has not written is passed over, and tried again after a while.
        """
        try:
            notification, left = transact(self._db, self._step)
        except CorruptData as error:
            return self._pass_over(error)
        if self._place == self._begin:
            self._round = notification
        self._are_left |= bool(left)
        if len(self._notes) == self._at_once:
            self._place = after(self._notes[-1].key)
            return _LATER
        return self._end_round()

    def _step(self, tr: Transaction) -> tuple[bytes | None, set[bytes]]:
        notification = tr.snapshot.get(self.notification)
        notes = tr.snapshot.get_range(
            self._place, self._end, limit=self._at_once, streaming_mode=WANT_ALL
        ).to_list()
        self._notes = notes
        left = self.serve(tr, [note.key[len(self._begin) :] for note in notes]) if notes else set()
        for note in notes:
            if note.key[len(self._begin) :] not in left:
                tr.compare_and_clear(note.key, note.value)
        return notification.value, left

    def _pass_over(self, error: CorruptData) -> float:
        """One of the last step's cannot be served: take one at a time, and leave that one out."""
        if self._at_once == 1:
            self._problem = str(error)
            self._place = after(self._notes[0].key)
        self._at_once = 1
        return _LATER

    def _end_round(self) -> float:
        """All have had their turn; returns when the next round is to begin."""
        begun_with, are_left, self.problem = self._round, self._are_left, self._problem
        self._place, self._at_once = self._begin, self.most
        self._round, self._are_left, self._problem = None, False, ""
        if are_left:
            return _LATER
        if self.problem:
            return TROUBLE_SECONDS
        if begun_with is not None:
            # All that was noted when the round began is done: whoever has come since has changed the notification.
            transact(self._db, lambda tr: tr.compare_and_clear(self.notification, begun_with))
        return DONE
