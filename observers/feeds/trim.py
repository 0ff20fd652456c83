"""Retention of a feed: remove expired messages in small steps, and record the last removed one for readers.

The age of a message is in its id: versions advance by about a million per second. So expired messages are adjacent,
independent of the senders' clocks, and later messages sort after them. A recovery of a cluster advances its versions by
up to some hundred seconds: messages may be removed that much earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cq import runtime
from cq.errors import CorruptData
from cq.feeds.config import FeedConfig, usable_feed_config
from cq.feeds.messages import is_quiet, take
from cq.keys import after, prefix_end
from cq.keys.feed import ID_BYTES, FeedKeys, first_id_at, id_of, mark, removed_mark, split_mark, split_removed
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.store.api import WANT_ALL, Database, KeyValue, Transaction
from cq.store.transact import transact
from cq.store.version_clock import clock_of

EVERY_SECONDS: Final = 1.0, 60.0
"""Pause between two rounds over all receivers: a hundredth of `keep_seconds`, within these limits."""
RECEIVERS: Final = 50
"""Number of receivers that a step checks."""
GROUPS: Final = 50
"""Number of groups with texts that a step checks."""
MESSAGES: Final = 1_000
"""Limit of messages that a step removes."""
_REST: Final = 9  # minimum ratio of pause to work, so that the task uses a tenth of its thread's time
_STEP_BYTES: Final = 1_000_000  # limit of the messages that a step reads to remove them


class FeedTrimTask(Task):
    """Trim all receivers of a feed, `RECEIVERS` in each step."""

    delay = EVERY_SECONDS[0]

    def __init__(self, db: Database, config: FeedConfig) -> None:
        self.config = config
        self.keys = FeedKeys(config.name)
        self._db = db
        self._begin, self._end = self.keys.all_latest()
        self._place = self._begin
        self._texts, self._texts_end = self.keys.all_group_texts()
        self._begun = 0.0
        self._removed = 0  # messages, by the last step
        self._reported = ""  # the latest error of a skipped receiver: reported once
        self._at_once = RECEIVERS
        self._rows: list[KeyValue] = []  # `latest` keys of the receivers of the last step
        least, most = EVERY_SECONDS
        kept = 0.0 if config.keep_seconds is None or config.keep_last is not None else config.keep_seconds
        self._every = min(most, max(least, kept / 100))

    def __str__(self) -> str:
        return f"old messages of feed {self.config.name!r}"

    def run(self) -> float:
        """Run one step; returns 0, or the pause after the last receiver. Raises the store's `FDBError`."""
        if self._place == self._begin:
            self._begun = runtime.monotonic()
        try:
            place = transact(self._db, self._step)
        except CorruptData as error:
            place = self._skip(error)
        if self._removed:
            emit("feed_trimmed", feed=self.config.name, messages=self._removed)
        if place is None and self._place >= self._begin and self.config.keep_seconds is not None:
            place = self._texts  # after the messages that refer to them
        if place is not None:
            self._place = place
            return 0.0
        self._place, self._at_once = self._begin, RECEIVERS
        return max(self._every, _REST * (runtime.monotonic() - self._begun))

    def _step(self, tr: Transaction) -> bytes | None:
        """Trim the next receivers, or texts of groups; returns the key of the next one, None at the end of these."""
        self._removed = 0
        # With a conflict: a worker replaces the task soon after a change, and until then it must remove nothing.
        if usable_feed_config(tr, self.config.name) != self.config:
            return None
        if self._place < self._begin:
            return self._trim_texts(tr)
        rows = tr.snapshot.get_range(
            self._place, self._end, limit=self._at_once, streaming_mode=WANT_ALL
        ).to_list()
        self._rows = rows
        if not rows:
            return None
        again = self._trim(tr, [row.key[len(self._begin) :] for row in rows])
        if again is not None:
            return self.keys.latest(again)
        return after(rows[-1].key) if len(rows) == self._at_once else None

    def _skip(self, error: CorruptData) -> bytes:
        """Handle corrupt data of a receiver: trim one at a time, and skip the one that fails; returns the next key."""
        if self._at_once > 1:
            self._at_once = 1
            return self._place
        if str(error) != self._reported:
            self._reported = str(error)
            emit("feed_passed_over", feed=self.config.name, reason=self._reported)
        return after(self._rows[0].key)

    def _trim(self, tr: Transaction, receivers: Sequence[bytes]) -> bytes | None:
        """Remove expired messages of these receivers; returns the first unfinished one if a limit was reached."""
        # With a conflict: of two workers that remove messages of one receiver only one commits.
        removed = [tr.get(self.keys.removed(each)) for each in receivers]
        before = [split_removed(each.value)[1:] for each in removed]
        ends = self._ends(tr, receivers, [number for number, _ in before])
        ranges = [
            tr.snapshot.get_range(self.keys.messages(each)[0], end, limit=MESSAGES + 1)
            for each, end in zip(receivers, ends, strict=True)
        ]
        budget, size = MESSAGES, _STEP_BYTES
        for receiver, (number, counted_before), found in zip(receivers, before, ranges, strict=True):
            rows, more = take(found, budget, size)
            budget, size = budget - len(rows), size - sum(len(row.value) for row in rows)
            if rows:
                counted = counted_before + sum(not is_quiet(row.value) for row in rows)
                self._remove(tr, receiver, id_of(rows[-1].key), number + len(rows), counted)
                self._removed += len(rows)
            if more or budget <= 0 or size <= 0:
                return receiver
        return None

    def _ends(self, tr: Transaction, receivers: Sequence[bytes], removed: Sequence[int]) -> list[bytes]:
        """Return the key before which each receiver's messages expire, given the last removed numbers."""
        keep_seconds, keep_last = self.config.keep_seconds, self.config.keep_last
        oldest = b"" if keep_seconds is None else _first_id(tr, keep_seconds)
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
            numbered = after(id_) if id_ else b""  # later messages have no number yet: they stay
            ends.append(begin + min(max(oldest, beyond), numbered))
        return ends

    def _trim_texts(self, tr: Transaction) -> bytes | None:
        """Remove expired texts of the next groups; returns the key of the next one, None at the end.

        No text of a message that is still delivered is removed. An edit reads its text with a conflict, so that it
        does not write it again.
        """
        oldest, place = _first_id(tr, self.config.keep_seconds or 0.0), self._place
        for _ in range(GROUPS):
            rows = tr.snapshot.get_range(place, self._texts_end, limit=1).to_list()
            if not rows:
                return None
            group = rows[0].key[len(self._texts) : -ID_BYTES]
            undelivered = tr.snapshot.get_range(*self.keys.group_messages(group), limit=1).to_list()
            until = min([oldest, *(id_of(row.key) for row in undelivered)])
            begin = self.keys.group_text(group, b"")
            if id_of(rows[0].key) < until:
                tr.clear_range(begin, begin + until)
            place = prefix_end(begin)
        return place

    def _remove(self, tr: Transaction, receiver: bytes, until: bytes, number: int, counted: int) -> None:
        """Remove a receiver's messages up to the one of id `until` and number `number`.

        `counted` of all messages up to it counted as unread.
        """
        tr.clear_range(*self.keys.messages_through(receiver, until))
        if self.config.numbers:
            tr.clear_range(*self.keys.numbers_through(receiver, number))
        last = removed_mark(until, number, counted) if self.config.unread else mark(until, number)
        tr.set(self.keys.removed(receiver), last)


def _first_id(tr: Transaction, seconds: float) -> bytes:
    """The lowest id of messages that are not older than this."""
    return first_id_at(clock_of(tr.db).before(tr.get_read_version().wait(), seconds))
