"""Work on receivers or groups of a feed that take turns: each gets a bounded step, and then the others come.

Whoever has work is noted under a key of its own, with a value that changes with each append. A step takes some of
those notes in turn, does a bounded part for each in one transaction, and clears the notes of those that are done, if
they are still the ones that were read. So one that is flooded has its share of each round and delays nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cq.errors import CorruptData
from cq.feeds.config import FeedConfig
from cq.keys import after
from cq.keys.feed import FeedKeys, Range
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.transact import transact
from cq.store.write_sizes import fitting

TROUBLE_SECONDS: Final = 1.0
"""After how long those who could not be served are tried again."""
_LATER: Final = 0.0
_NAMES_BYTES: Final = 30_000
"""Of the notes that one transaction serves: for each of them it writes several keys with the same name."""


@dataclass(slots=True)
class _FeedRound:
    """One way through all who have work.

    Attributes:
        place: the key of a note from which to go on.
        at_once: how many take their turn in one transaction.
        notification: the one that was there when it began, None if there was none.
        are_left: whether some that had their turn have more to do.
        problem: why somebody was passed over; else empty.
    """

    place: bytes
    at_once: int
    notification: bytes | None = None
    are_left: bool = False
    problem: str = ""


class RoundRobinTask(Task):
    """A bucket of receivers or groups, which take turns; a task for a worker.

    Args:
        db: a database of either store.
        config: of the feed.
        bucket: which one.

    Attributes:
        most: how many take their turn in one transaction.
        messages: how many the last call of `serve` has written.
    """

    notification: bytes
    most: int
    messages = 0

    def __init__(self, db: Database, config: FeedConfig, bucket: int) -> None:
        self.config, self.bucket = config, bucket
        self.keys = FeedKeys(config.name)
        self._db = db
        self._begin, self._end = self.noted()
        self._round: _FeedRound | None = None
        self._notes: list[KeyValue] = []  # of those who have had their turn in the last step
        self._is_last = False  # whether that was the last step of the round

    @abstractmethod
    def noted(self) -> Range:
        """The range of the keys that say who has work."""

    @abstractmethod
    def serve(self, tr: Transaction, names: Sequence[bytes]) -> set[bytes]:
        """Do a part for each of these, encoded as in their notes; returns those that have more to do.

        All that conflicts must be read through the transaction itself; a retry after an unknown result calls it again.
        """

    @abstractmethod
    def tell(self) -> None:
        """Tell, by an event, that a step has written messages."""

    def run(self) -> float:
        """One step; see `Task`. Raises the store's `FDBError`; the step can then be taken again.

        Whoever has something stored that cq has not written is passed over, and tried again after a while.
        """
        going = self._round or _FeedRound(self._begin, self.most)
        try:
            notification, left = transact(self._db, lambda tr: self._step(tr, going))
        except CorruptData as error:
            self._round = going
            self._pass_over(going, error)
            return _LATER
        if self.messages:
            self.tell()
        if going.place == self._begin:
            going.notification = notification
        going.are_left |= bool(left)
        if self._is_last:
            return self._end_round(going)
        going.place = after(self._notes[-1].key)
        self._round = going
        return _LATER

    def _step(self, tr: Transaction, going: _FeedRound) -> tuple[bytes | None, set[bytes]]:
        """Serve the next ones; returns the notification, and those that have more to do."""
        notification = tr.snapshot.get(self.notification)
        notes = tr.snapshot.get_range(
            going.place, self._end, limit=going.at_once, streaming_mode=WANT_ALL
        ).to_list()
        number = fitting((len(note.key) for note in notes), _NAMES_BYTES)
        self._is_last = len(notes) < going.at_once and number >= len(notes)
        notes = notes[:number]
        self._notes, self.messages = notes, 0
        left = self.serve(tr, [note.key[len(self._begin) :] for note in notes]) if notes else set()
        for note in notes:
            if note.key[len(self._begin) :] not in left:
                tr.compare_and_clear(note.key, note.value)
        if going.place == self._begin and self._is_last and not left:  # a round in one step
            self._clear(tr, notification.value)
        return notification.value, left

    def _pass_over(self, going: _FeedRound, error: CorruptData) -> None:
        """One of the last step's cannot be served: take one at a time, and leave that one out."""
        if going.at_once == 1:
            going.problem = str(error)
            if going.problem != self.problem:
                emit("feed_passed_over", feed=self.config.name, reason=going.problem)
            going.place = after(self._notes[0].key)
        going.at_once = 1

    def _end_round(self, going: _FeedRound) -> float:
        """All have had their turn; returns when the next round is to begin."""
        was_one_step = self._round is None
        self._round, self.problem = None, going.problem
        if going.are_left:
            return _LATER
        if going.problem:
            return TROUBLE_SECONDS
        if not was_one_step:
            transact(self._db, lambda tr: self._clear(tr, going.notification))
        return DONE

    def _clear(self, tr: Transaction, notification: bytes | None) -> None:
        """All that was noted when the round began is done: whoever has come since has changed the notification."""
        if notification is not None:
            tr.compare_and_clear(self.notification, notification)
