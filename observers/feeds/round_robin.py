"""Round robin over the receivers or groups of a feed that have work: each gets a bounded share of a round.

Each receiver or group with work has a note: a key whose value changes with each append. A step takes some of the notes
in key order, does a bounded part for each in one transaction, and clears the notes of the finished ones by
compare_and_clear, unless an append has changed them. So a flooded receiver gets its share of each round and delays no
other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from cq.errors import CorruptData
from cq.feeds.config import FeedConfig, usable_feed_config
from cq.feeds.messages import take
from cq.keys import after
from cq.keys.feed import ID_BYTES, FeedKeys, Range, id_of, mark, split_mark
from cq.observers.scheduling.runner import CAUGHT_UP, DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.sizes import fitting, set_bytes
from cq.store.transact import transact

TROUBLE_SECONDS: Final = 1.0
"""Seconds until a retry of receivers or groups that failed."""
_LATER: Final = 0.0
_NAMES_BYTES: Final = 30_000
"""Limit of the notes' keys in one transaction: it writes several keys with the same name for each."""
MESSAGES: Final = 1_000
"""Limit of messages that a step numbers."""
_RECEIVER_BYTES: Final = 100_000  # limit of the messages that a step reads of one receiver
_STEP_BYTES: Final = 1_000_000  # limit of all messages that a step reads
# Limit of the numbers that a step writes: their keys contain the receivers' names.
_WRITTEN_BYTES: Final = 400_000


class RoundRobinTask(Task):
    """A task that serves a bucket of receivers or groups in turn.

    Args:
        db: a database of either store.
        config: configuration of the feed; each step reads the present one.
        bucket: number of the bucket.

    Attributes:
        event: the event that a step emits if it has written messages.
        names_per_step: number of names that one transaction serves.
    """

    notification: bytes
    event: str
    names_per_step: int

    def __init__(self, db: Database, config: FeedConfig, bucket: int) -> None:
        self.config, self.bucket = config, bucket
        self.keys = FeedKeys(config.name)
        self._db = db
        self.notification, (self._begin, self._end) = self.places()
        self._place = self._begin  # where the next step begins
        self._at_once = self.names_per_step
        self._has_more = False  # whether a name that this round has served has more work
        self._skipped = ""  # the error of a name that this round has skipped
        self.problem = ""  # that of the round before
        self._notes: list[KeyValue] = []  # served by the last step
        self._is_last = False  # whether the last step ended the round

    @abstractmethod
    def places(self) -> tuple[bytes, Range]:
        """Return the key of the notification, and the range of the notes: keys of names that have work."""

    @abstractmethod
    def serve(self, tr: Transaction, names: Sequence[bytes]) -> tuple[set[bytes], int]:
        """Do a part of the work of each of these encoded names.

        Returns the names with more work, and the number of messages that it has written.

        It must read its locks through the transaction itself, as a retry after an unknown result calls it again.
        """

    def run(self) -> float:
        """Run one step; see `Task`. Raises the store's `FDBError`; the step can then run again.

        A name with corrupt data is skipped, and tried again after `TROUBLE_SECONDS`.
        """
        is_whole = self._place == self._begin
        try:
            unfinished, messages = transact(self._db, self._step)
        except CorruptData as error:
            self._skip(str(error))
            return _LATER
        if messages:
            emit(self.event, feed=self.config.name, messages=messages)
        self._has_more |= bool(unfinished)
        if not self._is_last:
            self._place = after(self._notes[-1].key)
            return _LATER
        has_more, self.problem = self._has_more, self._skipped
        self._place, self._at_once = self._begin, self.names_per_step
        self._has_more, self._skipped = False, ""
        if self.problem and not has_more:
            return TROUBLE_SECONDS
        # A round of several steps does not clear the notification: the next one, whose step finds nothing, does.
        if has_more or not is_whole:
            return _LATER
        return CAUGHT_UP if self._notes else DONE

    def _step(self, tr: Transaction) -> tuple[set[bytes], int]:
        """Serve the next names; returns as `serve`."""
        self._notes, self._is_last = [], True
        # With a conflict: the feed may have been deleted, and made again with other settings.
        config = usable_feed_config(tr, self.config.name)
        if config is None:
            return set(), 0
        self.config = config
        notification = tr.snapshot.get(self.notification)
        notes = tr.snapshot.get_range(
            self._place, self._end, limit=self._at_once, streaming_mode=WANT_ALL
        ).to_list()
        number = fitting((len(note.key) for note in notes), _NAMES_BYTES)
        self._is_last = len(notes) < self._at_once and number >= len(notes)
        notes = notes[:number]
        self._notes = notes
        names = [note.key[len(self._begin) :] for note in notes]
        unfinished, messages = self.serve(tr, names) if names else (set[bytes](), 0)
        for name, note in zip(names, notes, strict=True):
            # An append since the read version has changed the note, which then stays.
            if name not in unfinished:
                tr.compare_and_clear(note.key, note.value)
        if self._place == self._begin and self._is_last and not unfinished and notification.present():
            tr.compare_and_clear(self.notification, notification.value or b"")  # as with the notes
        return unfinished, messages

    def _skip(self, problem: str) -> None:
        """Handle corrupt data of a name in the last step: serve one name at a time, and skip the one that fails."""
        if self._at_once == 1:
            self._skipped = problem
            if problem != self.problem:
                emit("feed_passed_over", feed=self.config.name, reason=problem)
            self._place = after(self._notes[0].key)
        self._at_once = 1


class NumberingTask(RoundRobinTask):
    """Number the messages of a bucket of receivers: 1, 2, 3 ... for each, without gaps, in the order of ids.

    A step reads the last number of each of its receivers with a conflict, so of two steps for one receiver only one
    commits. It reads the next messages at one version, and all later commits have greater ids. So no message ever
    appears before a numbered one.
    """

    event = "feed_numbered"
    names_per_step = 100

    def __str__(self) -> str:
        return f"numbers of feed {self.config.name!r}, bucket {self.bucket}"

    def places(self) -> tuple[bytes, Range]:
        return self.keys.numbering(self.bucket), self.keys.all_unnumbered(self.bucket)

    def serve(self, tr: Transaction, names: Sequence[bytes]) -> tuple[set[bytes], int]:
        """Number the next messages of each of these receivers."""
        limit = MESSAGES // len(names)
        # With a conflict: it is the lock of the receiver. The messages need none, as later ones sort after them.
        stored = [tr.get(self.keys.numbered(receiver)) for receiver in names]
        marks = [split_mark(each.value) for each in stored]
        ranges = [
            tr.snapshot.get_range(*self.keys.messages(receiver, last), limit=limit + 1)
            for receiver, (last, _) in zip(names, marks, strict=True)
        ]
        unfinished, size, messages = set(), 0, 0
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
            messages += len(rows)
            if rows:
                tr.set(self.keys.numbered(receiver), mark(id_of(rows[-1].key), number + len(rows)))
            if more:
                unfinished.add(receiver)
        return unfinished, messages
