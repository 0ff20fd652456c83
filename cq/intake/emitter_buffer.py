"""What waits in an emitter: its flushes in order, under one lock, and who is to be woken for them.

The first flush is being committed, or is the next to be; the last may be open and take increments in. All counts are
bounded: by `at_most` increments over all flushes, and by `MOST_FLUSHES` of them, each of a transaction's size. Nothing
here waits or touches a store.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cq import runtime
from cq.errors import EmitterClosed
from cq.intake.flush import Also, Flush, Increment, Intake
from cq.plain_text import describe

MOST_FLUSHES: Final = 16
"""How many flushes may wait: they bound what large updates take, as `at_most` does not."""


@dataclass(frozen=True, slots=True)
class EmitterStatistics:
    """What an emitter has done so far.

    Attributes:
        emitted: increments taken: the sum of the next four.
        committed: increments of flushes that are committed.
        buffered: increments not committed yet.
        failed: increments whose callers got a `FlushFailed` (`durable`).
        lost: increments that were given up when the emitter was closed, or may have been committed then (`fast`).
        flushes: transactions committed.
        keys: updates in these, after merging.
        failures: tries of flushes that failed, each after the store's own retries.
        waits: how often calls have waited for room.
        flush_seconds: how long the latest flush has taken, failures included.
        latest_failure: what went wrong the last time; empty if nothing has.
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


class EmitterBuffer:
    """The flushes of one emitter.

    Args:
        intake: how they are merged.
        is_durable: whether callers wait for their flush; else increments are gathered for a while.
        every: for how many seconds at most.
        at_most: how many increments may wait.

    Attributes:
        lock: to be held by whoever changes a flush, or `open`.
        open: the flush that takes increments in; None when there is none.
        wake: set when something may be due; a new one after each look.
        refusal: why nothing is taken any more; empty as long as it is.
        latest_failure: what went wrong the last time.
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
        self._made = 0
        self._is_trying = False  # the first of them may be committed at any time
        self._is_given_up = False
        # Increments that have waited while a flush was committed: so many come again, about.
        self._callers = 1
        self._told_at = 0.0  # when callers have last been told
        self._flush_seconds = 0.0
        totals = ("committed", "failed", "lost", "flushes", "keys", "failures", "waits")
        self._totals = dict.fromkeys(totals, 0)

    # For those who emit

    def take(self, increments: list[Increment], also: Also | None = None) -> tuple[Flush, bool]:
        """Put increments into a flush, and what its transaction is to do besides: this one, and True.

        Without room for them: the flush to wait for, and False.

        Raises `EmitterClosed`.
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
                self.has_enough(flush)
            return flush, True

    def flush_for(self, count: int, size: int) -> Flush | None:
        """The open flush if so many increments and bytes fit in, else a new one; None without room. Under the lock."""
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
        self._made += 1
        self.open = Flush(self._intake, most, self._callers if self._is_durable else most, self._made)
        self._flushes.append(self.open)
        if not self._seconds_to_gather():
            self._wake()
        return self.open

    def has_enough(self, flush: Flush) -> None:
        """The open flush, under the lock, holds enough to be committed."""
        if flush.count >= flush.most:
            self.open = None
        self._wake()

    def seal(self) -> Flush | None:
        """Make all that was taken due; the last flush of it, None when nothing waits."""
        with self.lock:
            self._seal()
            return self._flushes[-1] if self._flushes else None

    def _seal(self) -> None:
        if self.open is not None:
            self.open = None
            self._wake()

    def _wake(self) -> None:
        if not self.wake.is_set():
            self.wake.set()

    def refuse(self, reason: str) -> bool:
        """Take nothing any more; whether anything was taken until now."""
        with self.lock:
            was_taking = not self.refusal
            self.refusal = self.refusal or reason
            self._seal()
            self._wake()
        return was_taking

    def statistics(self) -> EmitterStatistics:
        """What has become of all that was taken."""
        with self.lock:
            totals = self._totals
            buffered = sum(flush.count for flush in self._flushes)
            return EmitterStatistics(
                emitted=buffered + totals["committed"] + totals["failed"] + totals["lost"],
                buffered=buffered,
                flush_seconds=self._flush_seconds,
                latest_failure=self.latest_failure,
                **totals,
            )

    # For the thread that commits

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, and nothing will."""
        return bool(self.refusal) and not self._flushes

    def due(self) -> tuple[Flush | None, float | None]:
        """The flush to commit now; without one, in how many seconds to look again, None for once `wake` is set."""
        with self.lock:
            if self.wake.is_set():
                self.wake = runtime.latch()
            first = self._flushes[0] if self._flushes else None
            if first is None:
                return None, self._seconds_to_gather() or None
            if first is self.open:
                left = self._seconds_to_gather(first)
                if left and first.count < first.enough:
                    return None, left
                self.open = None
            return first, None

    def _seconds_to_gather(self, flush: Flush | None = None) -> float:
        """How long increments are gathered yet, for the open flush or, without one, for the next.

        In `durable` mode that is so long that callers who were just told can come again: for them nobody is woken.
        """
        if self._is_durable:
            until = self._told_at + min(self._every, self._flush_seconds)
        elif flush is not None:
            until = flush.begun + self._every
        else:
            return 0.0
        return max(0.0, until - runtime.monotonic())

    def begin_try(self, flush: Flush) -> bool:
        """Whether a flush is to be committed: it has not been given up."""
        with self.lock:
            self._is_trying = not flush.done.is_set()
            return self._is_trying

    def fail_try(self, flush: Flush, error: Exception) -> None:
        """Note that it could not be: in `durable` mode those who wait are told, else it is to be tried again."""
        with self.lock:
            self._is_trying = False
            self._totals["failures"] += 1
            self.latest_failure = describe(error)
            if self._is_durable or self._is_given_up:
                self._settle(flush, error)

    def commit(self, flush: Flush, keys: int, seconds: float) -> None:
        """Note that a flush of so many updates is committed, in so long a time."""
        with self.lock:
            self._is_trying = False
            self._flush_seconds = seconds
            if self._settle(flush, None):
                self._totals["flushes"] += 1
                self._totals["keys"] += keys

    def give_up(self, error: Exception) -> list[Flush]:
        """Wait no longer for what was taken; the flushes that were not done."""
        with self.lock:
            self._is_given_up = True
            if self._is_trying and self._flushes:
                self._flushes[0].in_doubt = True  # it may be committed yet
            left = list(self._flushes)
            for flush in left:
                self._settle(flush, error)
            return left

    def _settle(self, flush: Flush, error: Exception | None) -> bool:
        """A flush is done: tell those who wait, and count its increments; False if that has been done."""
        if flush.done.is_set():
            return False
        self._told_at = runtime.monotonic()
        self._callers = sum(each.count for each in self._flushes)
        self._flushes.remove(flush)
        fate = "committed" if error is None else "failed" if self._is_durable else "lost"
        self._totals[fate] += flush.count
        flush.settle(error)
        return True

    def forget(self, reason: str) -> None:
        """In a forked child: all of it belongs to the parent, whose thread commits it, and so may the lock."""
        self.lock = Lock()
        self.open = None
        self._flushes.clear()
        self.refusal = reason
