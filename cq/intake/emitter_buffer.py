"""The buffer of an emitter: its flushes in order, under one lock, and the wake-ups of its thread.

The first flush is being committed, or is the next one; the last may be open and take increments. All sizes are bounded:
by `at_most` increments over all flushes, and by `MOST_FLUSHES` flushes, each of a transaction's size. No function here
waits or uses a store.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Final, NamedTuple

from cq import runtime
from cq.errors import EmitterClosed
from cq.intake.flush import Also, Flush, Increment, Intake
from cq.plain_text import describe

MOST_FLUSHES: Final = 16
"""Maximum number of flushes: it bounds the memory of large updates, which `at_most` does not."""


@dataclass(frozen=True, slots=True)
class EmitterStatistics:
    """Counts of an emitter since its creation.

    Attributes:
        emitted: increments taken: the sum of the next four.
        committed: increments of committed flushes.
        buffered: increments not committed yet.
        failed: increments whose callers got a `FlushFailed` (`durable`).
        lost: increments given up when the emitter was closed, some of which may be committed; and those that the queue
            refuses since its configuration changed, where increments merged into one update count as one (`fast`).
        flushes: committed transactions.
        keys: updates in these, after merging.
        failures: failed tries of flushes, each after the store's own retries.
        waits: number of times that calls waited for room.
        flush_seconds: duration of the latest committed flush, including its failed tries.
        latest_failure: the latest error; empty if there was none.
    """

    emitted: int
    committed: int
    buffered: int
    failed: int
    lost: int
    flushes: int
    keys: int
    failures: int
    waits: int
    flush_seconds: float
    latest_failure: str


class _Finished(NamedTuple):
    """The latest flush that is done.

    Attributes:
        callers: increments that waited while it was committed: about that many will come again.
        at: when its callers got their result.
        seconds: duration of the latest committed one.
    """

    callers: int = 1
    at: float = 0.0
    seconds: float = 0.0


class EmitterBuffer:
    """The flushes of one emitter.

    Args:
        intake: the checks and merges of the emitter.
        is_durable: whether callers wait for their flush; else the buffer collects increments for `every` seconds.
        every: maximum seconds that a flush collects increments.
        at_most: maximum number of increments in all flushes.

    Attributes:
        lock: the caller must hold it to change a flush, or `open`.
        open: the flush that takes increments; None if there is none.
        wake: set when a flush may be due; `next_flush` then replaces it.
        refusal: why the buffer takes no increments any more; empty while it takes them.
        latest_failure: the latest error.
    """

    def __init__(self, intake: Intake, *, is_durable: bool, every: float, at_most: int) -> None:
        self.lock = Lock()
        self.open: Flush | None = None
        self.wake = runtime.latch()
        self.refusal = ""
        self.latest_failure = ""
        self._intake = intake
        self._is_durable = is_durable
        self._every = every
        self._at_most = at_most
        self._flushes: deque[Flush] = deque()
        self._numbers = count(1)
        self._latest = _Finished()
        totals = ("committed", "failed", "lost", "flushes", "keys", "failures", "waits")
        self._totals = dict.fromkeys(totals, 0)

    # For callers

    def take(self, increments: list[Increment], also: Also | None = None) -> tuple[Flush, bool]:
        """Put increments, and a caller's additional writes, into a flush; returns the flush and True.

        Without room, returns the flush to wait for, and False. Raises `EmitterClosed`.
        """
        with self.lock:
            if self.refusal:
                raise EmitterClosed(self.refusal)
            flush = self.flush_for(len(increments), sum(each.size for each in increments))
            if flush is None:
                self._totals["waits"] += 1
                return self._flushes[0], False
            for each in increments:
                flush.add(each)
            if also is not None:
                flush.also.append(also)
            if flush.count >= flush.enough:
                self.mark_due(flush)
            return flush, True

    def flush_for(self, count: int, size: int) -> Flush | None:
        """The open flush if `count` increments of `size` bytes fit, else a new one; None if full. Needs the lock."""
        held = sum(flush.count for flush in self._flushes)
        if self.refusal or (self._flushes and held + count > self._at_most):
            self._seal()
            return None
        if self.open is not None and self.open.has_room(size):
            return self.open
        self._seal()
        if len(self._flushes) >= MOST_FLUSHES:
            return None
        most = min(max(1, self._at_most // 2), self._at_most - held)
        enough = self._latest.callers if self._is_durable else most
        self.open = Flush(self._intake, most, enough, next(self._numbers))
        self._flushes.append(self.open)
        if not self._seconds_to_wait():
            self._wake()
        return self.open

    def mark_due(self, flush: Flush) -> None:
        """Make the open flush due, and close it if it is full. Needs the lock."""
        if flush.count >= flush.most:
            self.open = None
        self._wake()

    def seal(self) -> Flush | None:
        """Make all flushes due; returns the last one, None if the buffer is empty."""
        with self.lock:
            self._seal()
            return self._flushes[-1] if self._flushes else None

    def _seal(self) -> None:
        if self.open is not None:
            self.open = None
            self._wake()

    def _wake(self) -> None:
        # Callers must hold the lock: `next_flush` replaces the latch under it, so no wake-up is lost.
        if not self.wake.is_set():
            self.wake.set()

    def close(self, reason: str) -> bool:
        """Refuse increments from now on; returns whether the buffer took them until now."""
        with self.lock:
            was_taking = not self.refusal
            self.refusal = self.refusal or reason
            self._seal()
            self._wake()
        return was_taking

    def statistics(self) -> EmitterStatistics:
        """The counts of all increments taken."""
        with self.lock:
            totals = self._totals
            buffered = sum(flush.count for flush in self._flushes)
            return EmitterStatistics(
                emitted=buffered + totals["committed"] + totals["failed"] + totals["lost"],
                buffered=buffered,
                flush_seconds=self._latest.seconds,
                latest_failure=self.latest_failure,
                **totals,
            )

    # For the emitter's thread

    @property
    def is_finished(self) -> bool:
        """Whether the buffer is closed and empty."""
        return bool(self.refusal) and not self._flushes

    def next_flush(self) -> tuple[Flush | None, float | None]:
        """The flush to commit now; else None, and the seconds to wait for `wake`, None for no limit."""
        with self.lock:
            if self.wake.is_set():
                self.wake = runtime.latch()
            first = self._flushes[0] if self._flushes else None
            if first is None:
                return None, self._seconds_to_wait() or None
            if first is self.open:
                left = self._seconds_to_wait(first)
                if left and first.count < first.enough:
                    return None, left
                self.open = None
            return first, None

    def _seconds_to_wait(self, flush: Flush | None = None) -> float:
        """Seconds for which the open flush, or else the next one, collects more increments.

        In `durable` mode the buffer waits for callers that just got a result to emit again: about as long as the latest
        flush took. Their increments then share a flush, and need no wake-up of the thread.
        """
        if self._is_durable:
            until = self._latest.at + min(self._every, self._latest.seconds)
        elif flush is not None:
            until = flush.begun + self._every
        else:
            return 0.0
        return max(0.0, until - runtime.monotonic())

    def begin_try(self, flush: Flush) -> bool:
        """Start a try of a flush; returns False if the flush was given up."""
        with self.lock:
            flush.is_trying = not flush.done.is_set()
            return flush.is_trying

    def fail_try(self, flush: Flush, error: Exception) -> None:
        """Record a failed try: in `durable` mode its callers get the error, else the thread retries."""
        with self.lock:
            flush.is_trying = False
            self._totals["failures"] += 1
            self.latest_failure = describe(error)
            if self._is_durable:
                self._finish(flush, error, self._latest.seconds)

    def lose(self, flush: Flush, number: int, *, is_all: bool) -> int:
        """Count increments of a flush as lost, `number` of them or all; returns how many. The others stay in it.

        A flush that was given up meanwhile has lost all of them already.
        """
        with self.lock:
            if flush.done.is_set():
                return 0
            lost = flush.count if is_all else min(number, flush.count)
            flush.count -= lost
            self._totals["lost"] += lost
            return lost

    def commit(self, flush: Flush, keys: int, seconds: float) -> None:
        """Record that a flush with `keys` updates is committed, after `seconds` seconds."""
        with self.lock:
            flush.is_trying = False
            if self._finish(flush, None, seconds):
                self._totals["flushes"] += 1
                self._totals["keys"] += keys

    def give_up(self, error: Exception) -> list[Flush]:
        """Give up all unfinished flushes; returns them."""
        with self.lock:
            left = list(self._flushes)
            for flush in left:
                flush.in_doubt |= flush.is_trying  # the try in progress may still commit
                self._finish(flush, error, self._latest.seconds)
            return left

    def _finish(self, flush: Flush, error: Exception | None, seconds: float) -> bool:
        """Remove a done flush, count its increments, and wake its callers; returns False if that was already done."""
        if flush.done.is_set():
            return False
        self._latest = _Finished(sum(each.count for each in self._flushes), runtime.monotonic(), seconds)
        self._flushes.remove(flush)
        fate = "committed" if error is None else "failed" if self._is_durable else "lost"
        self._totals[fate] += flush.count
        flush.finish(error)
        return True

    def forget(self, reason: str) -> None:
        """Empty the buffer in a forked child: the parent's thread commits the flushes, and may hold the lock."""
        self.lock = Lock()
        self.open = None
        self._flushes.clear()
        self.refusal = reason
