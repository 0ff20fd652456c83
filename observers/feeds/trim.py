"""Removes the messages of a feed that are not to be kept, in small steps, and notes up to where, so that readers know.

How old a message is its id says: versions advance by about a million a second. So all that are too old lie side by
side, whatever the senders' clocks say, and all that comes later sorts behind them. A recovery of a cluster raises its
versions by up to some hundred seconds: messages may be removed that much before their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cq import runtime
from cq.errors import CorruptData
from cq.feeds.config import FeedConfig
from cq.feeds.messages import take
from cq.keys import after
from cq.keys.feed import FeedKeys, first_id_at, id_of, mark, split_mark
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.transact import transact
from cq.store.version_clock import clock_of

EVERY_SECONDS: Final = 1.0, 60.0
"""How long it rests between two looks at all receivers: a hundredth of the time that is kept, within these."""
RECEIVERS: Final = 50
"""How many receivers a step looks at."""
MESSAGES: Final = 1_000
"""How many messages a step removes at most."""
_REST: Final = 9  # times as long as it has worked
_STEP_BYTES: Final = 1_000_000  # of messages that are read to be removed


class FeedTrimTask(Task):
    """Looks through all receivers of a feed, some in each step."""

    delay = EVERY_SECONDS[0]

    def __init__(self, db: Database, config: FeedConfig) -> None:
        self.config = config
        self.keys = FeedKeys(config.name)
        self._db = db
        self._begin, self._end = self.keys.all_latest()
        self._place = self._begin
        self._begun = 0.0
        self._removed = 0  # by the last step
        self._told = ""  # why one was passed over
        self._at_once = RECEIVERS
        self._looked_at: list[KeyValue] = []  # the receivers of the last step
        least, most = EVERY_SECONDS
        kept = 0.0 if config.keep_seconds is None or config.keep_last is not None else config.keep_seconds
        self._every = min(most, max(least, kept / 100))

    def __str__(self) -> str:
        return f"old messages of feed {self.config.name!r}"

    def run(self) -> float:
        """One step; the next at once, or the first one again after a while. Raises the store's `FDBError`."""
        if self._place == self._begin:
            self._begun = runtime.monotonic()
        try:
            place = transact(self._db, self._step)
        except CorruptData as error:
            place = self._pass_over(error)
        if self._removed:
            emit("feed_trimmed", feed=self.config.name, messages=self._removed)
        if place is not None:
            self._place = place
            return 0.0
        self._place, self._at_once = self._begin, RECEIVERS
        return max(self._every, _REST * (runtime.monotonic() - self._begun))

    def _step(self, tr: Transaction) -> bytes | None:
        """Look at the next receivers; returns where to go on, None at the end."""
        self._removed = 0
        rows = tr.snapshot.get_range(
            self._place, self._end, limit=self._at_once, streaming_mode=WANT_ALL
        ).to_list()
        self._looked_at = rows
        if not rows:
            return None
        again = self._trim(tr, [row.key[len(self._begin) :] for row in rows])
        if again is not None:
            return self.keys.latest(again)
        return after(rows[-1].key) if len(rows) == self._at_once else None

    def _pass_over(self, error: CorruptData) -> bytes:
        """A receiver of the last step has something that cq has not written: leave it out; returns where to go on."""
        if self._at_once > 1:
            self._at_once = 1
            return self._place
        if str(error) != self._told:
            self._told = str(error)
            emit("feed_passed_over", feed=self.config.name, reason=self._told)
        return after(self._looked_at[0].key)

    def _trim(self, tr: Transaction, receivers: Sequence[bytes]) -> bytes | None:
        """Remove what is not to be kept of these receivers; returns the one to go on with when it was too much."""
        # Real reads of the marks: of two workers that remove messages of one receiver only one commits.
        removed = [tr.get(self.keys.removed(each)) for each in receivers]
        before = [split_mark(each.value) for each in removed]
        ends = self._ends(tr, receivers, [number for _, number in before])
        ranges = [
            tr.snapshot.get_range(self.keys.messages(each)[0], end, limit=MESSAGES + 1)
            for each, end in zip(receivers, ends, strict=True)
        ]
        budget, size = MESSAGES, _STEP_BYTES
        for receiver, (_, number), found in zip(receivers, before, ranges, strict=True):
            rows, more = take(found, budget, size)
            budget, size = budget - len(rows), size - sum(len(row.value) for row in rows)
            if rows:
                self._remove(tr, receiver, id_of(rows[-1].key), number + len(rows))
                self._removed += len(rows)
            if more or budget <= 0 or size <= 0:
                return receiver
        return None

    def _ends(self, tr: Transaction, receivers: Sequence[bytes], removed: Sequence[int]) -> list[bytes]:
        """The key before which each receiver's messages are to be removed, given the numbers removed so far."""
        keep_seconds, keep_last = self.config.keep_seconds, self.config.keep_last
        oldest = b""
        if keep_seconds is not None:
            oldest = first_id_at(clock_of(tr.db).before(tr.get_read_version().wait(), keep_seconds))
        begins = [self.keys.messages(each)[0] for each in receivers]
        if not self.config.numbers:
            return [begin + oldest for begin in begins]
        stored = [tr.snapshot.get(self.keys.numbered(each)) for each in receivers]
        last = [split_mark(each.value) for each in stored]
        surplus = [
            tr.snapshot.get(self.keys.number(each, number - keep_last))
            if keep_last is not None and number - keep_last > before
            else None
            for each, (_, number), before in zip(receivers, last, removed, strict=True)
        ]
        ends = []
        for begin, (id_, _), each in zip(begins, last, surplus, strict=True):
            beyond = after(each.value) if each is not None and each.value else b""
            ends.append(begin + min(max(oldest, beyond), after(id_) if id_ else b""))  # numbers come first
        return ends

    def _remove(self, tr: Transaction, receiver: bytes, until: bytes, number: int) -> None:
        """Remove a receiver's messages up to and with an id, which are so many with those removed before."""
        tr.clear_range(*self.keys.messages_through(receiver, until))
        if self.config.numbers:
            tr.clear_range(*self.keys.numbers_through(receiver, number))
        tr.set(self.keys.removed(receiver), mark(until, number))


def trimming_tasks(db: Database, config: FeedConfig) -> list[Task]:
    """The tasks of a worker for a feed of which not all is kept."""
    return [FeedTrimTask(db, config)] if config.removes else []
