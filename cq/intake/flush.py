"""The flushes of an emitter: each holds the checked increments of one transaction, merged by key; and their buffer.

So that a flush fits into its transaction, its size is measured without merging: merging can only make it smaller. If
the combiner does not merge some increments (it raises, or the queue does not take its result), these go to the store
one by one, and workers process them like all others.

The first flush of the buffer is being committed, or is the next one; the last may be open and take increments. All
sizes are bounded: by `at_most` increments over all flushes, and by `MAX_FLUSHES` flushes, each of a transaction's
size. No function here waits or uses a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from threading import RLock
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.combiners import Combiner, sum_
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.codec import is_int64
from cq.errors import EmitterClosed, TooLarge
from cq.failure import is_failure
from cq.plain_text import describe
from cq.queue.checks import AddCheck
from cq.queue.packing import split_pairs

FLUSH_BYTES: Final = 500_000
"""Maximum bytes that a transaction writes for updates: with all else it should stay below 1 MB."""
_PLAIN_BYTES: Final = 12  # of CBOR for an int, and before a key
_SHORT: Final = 1_000


class Increment(NamedTuple):
    """A checked update of a key, and the approximate bytes that an add writes for it."""

    key: Any
    update: Any
    size: int


class Intake:
    """The checks and merges of an emitter, by the queue's configuration and combiner.

    Attributes:
        adds: the checks of the queue's adds; the emitter replaces it when the configuration has changed.
        plain_key: the type of keys if the queue sums ints and its keys are of one type; then increments of small ints
            need no further checks. Else None.
    """

    def __init__(self, config: QueueConfig, combiner: Combiner) -> None:
        self.adds = AddCheck(config)
        self.combiner = combiner
        self.plain_key = config.key.plain if combiner is sum_ and config.value.types == (int,) else None

    def plain_size(self, key: Any) -> int:
        """The approximate size of an increment of a plain key by a small int; raises `InvalidData`, `TooLarge`."""
        adds = self.adds
        if type(key) is str and len(key) <= _SHORT and key.isascii():
            return adds.written(len(key) + _PLAIN_BYTES)  # always a valid key, so the encoding can wait
        return adds.written(len(adds.check(key, 1).encoded) + _PLAIN_BYTES)

    def increments(self, updates: Any) -> list[Increment]:
        """Check updates, which must fit into one flush; raises `InvalidData`, `TooLarge`."""
        found = [self._increment(key, update) for key, update in zip(*split_pairs(updates), strict=True)]
        size = sum(each.size for each in found)
        if size > FLUSH_BYTES and len(found) > 1:  # what a queue takes in one update, an emitter takes, too
            raise TooLarge(
                f"updates that write {size:,} bytes at once are more than the {FLUSH_BYTES:,} that an emitter takes: "
                "emit them in smaller parts, or add them in your own transactions"
            )
        return found

    def _increment(self, key: Any, update: Any) -> Increment:
        adds = self.adds
        adds.check(key, update)
        # A copy: the caller may change the object later. And it is decoded from CBOR, as workers receive it.
        own = codec.stored_copy(update)
        return Increment(key, own, adds.check(key, own).size)

    def is_summed(self, update: Any) -> bool:
        """Whether an update can be summed at once: for the combiner sum and ints of 64 bits, whose sum stays small."""
        return self.combiner is sum_ and type(update) is int and is_int64(update)

    def merged(self, increments: Sequence[Increment]) -> list[tuple[Any, Any]]:
        """The fewest pairs of key and update that combine to the same value as these increments of one key."""
        key = increments[0].key
        if len(increments) == 1:
            return [(key, increments[0].update)]
        try:
            value = self.combiner.combine(key, [each.update for each in increments])
            if self.adds.check(key, value).size <= sum(each.size for each in increments):
                return [(key, value)]
        except BaseException as error:
            # A worker combines increments that cannot be merged, or sets them aside.
            if not is_failure(error):
                raise
        middle = len(increments) // 2
        return self.merged(increments[:middle]) + self.merged(increments[middle:])


class Flush:
    """Increments committed together in one transaction, and their result.

    The caller of `add` or `finish`, and of any other change, must hold the emitter's lock.

    Args:
        intake: the checks and merges of the emitter.
        most: maximum number of increments; 0 when the flush has no room for more bytes.
        number: its number in the emitter; with the emitter's id this is its operation id.

    Attributes:
        sums: {key: sum} of small ints, which need no order.
        count: number of increments.
        size: their bytes, where only those in `sums` count as merged.
        begun: time of creation, by `runtime.monotonic`.
        is_trying: whether a try is under way.
        in_doubt: whether a try may have committed, or may commit later. Only a known commit ends the doubt.
        done: set when the flush is committed or given up.
        error: why it was given up.
        finished: resolved when the flush is done, for tasks that wait for room, of any event loop.
    """

    def __init__(self, intake: Intake, most: int, number: int) -> None:
        self.most = most
        self.sums: dict[Any, int] = {}
        self.count = self.size = 0
        self.number = number
        self.begun = runtime.monotonic()
        self.is_trying = False
        self.in_doubt = False
        self.done = runtime.latch()
        self.error: Exception | None = None
        self.finished: Future[None] = Future()
        self._intake = intake
        self._others: dict[Any, list[Increment]] = {}

    def doubt(self, error: Exception) -> None:
        """Record that a try, which ended with this error, may have committed, or may commit later."""
        self.in_doubt = True

    def has_room(self, size: int) -> bool:
        """Whether increments of `size` bytes fit in."""
        return self.size + size <= FLUSH_BYTES

    def add(self, increment: Increment) -> None:
        """Add an increment."""
        key, update, size = increment
        self.count += 1
        if not self._intake.is_summed(update):
            self._others.setdefault(key, []).append(increment)
        elif key in self.sums:
            self.sums[key] += update
            return
        else:
            self.sums[key] = update
        self.grow(size)

    def grow(self, size: int) -> None:
        """Count `size` more bytes; closes a full flush."""
        self.size += size
        if self.size >= FLUSH_BYTES:
            self.most = 0

    def updates(self) -> Mapping[Any, int] | list[tuple[Any, Any]]:
        """The updates to add to the queue, merged by key, those of each key in the order of the calls."""
        if not self._others:
            return self.sums
        found = list(self.sums.items())
        for increments in self._others.values():
            found += self._intake.merged(increments)
        return found

    def finish(self, error: Exception | None) -> None:
        """Mark the flush as committed, or as given up with an error, and wake all waiting callers."""
        self.error = error
        self.done.set()
        self.finished.set_result(None)


committed_here: Final = ContextVar["EmitterBuffer | None"]("committed_here", default=None)
"""The buffer whose flushes the calling thread commits."""
MAX_FLUSHES: Final = 16
"""Maximum number of flushes: it bounds the memory of large updates, which `at_most` does not."""


@dataclass(frozen=True, slots=True)
class EmitterStatistics:
    """Counts of an emitter since its creation.

    Attributes:
        emitted: increments taken: the sum of the next three.
        committed: increments of committed flushes.
        buffered: increments not committed yet.
        lost: increments given up when the emitter was closed, some of which may be committed.
        flushes: committed transactions.
        keys: updates in these, after merging.
        failures: failed tries of flushes, each after the store's own retries.
        waits: number of times that calls waited for room.
        latest_failure: the latest error; empty if there was none.
    """

    emitted: int
    committed: int
    buffered: int
    lost: int
    flushes: int
    keys: int
    failures: int
    waits: int
    latest_failure: str


def _new_lock() -> tuple[Any, Callable[[], bool]]:
    """A lock, and a function that returns whether the calling thread holds it, which conditions ask, too."""
    lock: Any = RLock()
    return lock, lock._is_owned


class EmitterBuffer:
    """The flushes of one emitter.

    Args:
        intake: the checks and merges of the emitter.
        every: maximum seconds that a flush collects increments.
        at_most: maximum number of increments in all flushes.

    Attributes:
        lock: the caller must hold it to change a flush, or `open`. A finalizer or a signal handler may call the emitter
            while it interrupts a holder: `take` leaves its increments for later.
        open: the flush that takes increments; None if there is none.
        is_held: returns whether the calling thread holds the lock: then the call has interrupted another one.
        wake: set when a flush may be due; `next_flush` then replaces it.
        refusal: why the buffer takes no increments any more; empty while it takes them.
        latest_failure: the latest error.
    """

    def __init__(self, intake: Intake, *, every: float, at_most: int) -> None:
        self.lock, self.is_held = _new_lock()
        self.open: Flush | None = None
        self.wake = runtime.latch()
        self.refusal = ""
        self.latest_failure = ""
        self._intake = intake
        self._every = every
        self._at_most = at_most
        self._flushes: deque[Flush] = deque()
        self._later: deque[list[Increment]] = deque()
        self._numbers = count(1)
        totals = ("committed", "lost", "flushes", "keys", "failures", "waits")
        self._totals = dict.fromkeys(totals, 0)

    # For callers

    def take(self, increments: list[Increment]) -> Flush | None:
        """Put increments into a flush; without room, returns the flush to wait for. Raises `EmitterClosed`."""
        has_interrupted = self.is_held()
        with self.lock:
            if self.refusal:
                raise EmitterClosed(self.refusal)
            if not has_interrupted:
                self._take_later()
                full = self._put(increments)
                if full is None:
                    return None
                if committed_here.get() is not self:
                    self._totals["waits"] += 1
                    return full
            # The caller must not wait: it is in the way of the holder, or of the thread that makes room.
            self._later.append(increments)
            return None

    def _put(self, increments: list[Increment]) -> Flush | None:
        """Put increments into a flush; without room, returns the flush to wait for. Needs the lock."""
        flush = self.flush_for(len(increments), sum(each.size for each in increments))
        if flush is None:
            return self._flushes[0]
        for each in increments:
            flush.add(each)
        if flush.count >= flush.most:
            self.seal_open()
        return None

    def _wake_for_later(self) -> None:
        """Have the emitter's thread put what `take` has left, as no flush may be due. Needs the lock."""
        if self._later:
            self._wake()

    def _take_later(self) -> None:
        """Put increments into flushes that `take` has left, as long as there is room. Needs the lock."""
        while self._later and self._put(self._later[0]) is None:
            self._later.popleft()

    def flush_for(self, count: int, size: int) -> Flush | None:
        """The open flush if `count` increments of `size` bytes fit, else a new one; None if full. Needs the lock.

        The caller looks for a refusal before.
        """
        held = sum(flush.count for flush in self._flushes)
        if self._flushes and held + count > self._at_most:
            self.seal_open()
            return None
        if self.open is not None and self.open.has_room(size):
            return self.open
        self.seal_open()
        if len(self._flushes) >= MAX_FLUSHES:
            return None
        most = min(max(1, self._at_most // 2), self._at_most - held)
        flush = Flush(self._intake, most, next(self._numbers))
        # The open flush is set last: ^C may end this anywhere, and an open one that nobody commits would be lost.
        self._wake()
        self._flushes.append(flush)
        self.open = flush
        return flush

    def seal_open(self) -> None:
        """Close the open flush, so that it is due. Needs the lock."""
        if self.open is not None:
            self.open = None
            self._wake()

    def seal(self) -> Flush | None:
        """Make all flushes due; returns the last one, None if the buffer is empty."""
        with self.lock:
            self._take_later()
            self.seal_open()
            last = self._flushes[-1] if self._flushes else None
            self._wake_for_later()
            return last

    def _wake(self) -> None:
        # Callers must hold the lock: `next_flush` replaces the latch under it, so no wake-up is lost.
        if not self.wake.is_set():
            self.wake.set()

    def close(self, reason: str) -> None:
        """Refuse increments from now on."""
        with self.lock:
            self.refusal = self.refusal or reason
            self.seal_open()
            self._wake()

    def statistics(self) -> EmitterStatistics:
        """The counts of all increments taken."""
        with self.lock:
            totals = self._totals
            buffered = sum(flush.count for flush in self._flushes)
            self._wake_for_later()
            return EmitterStatistics(
                emitted=buffered + totals["committed"] + totals["lost"],
                buffered=buffered,
                latest_failure=self.latest_failure,
                **totals,
            )

    # For the emitter's thread

    @property
    def is_finished(self) -> bool:
        """Whether the buffer is closed and empty."""
        return bool(self.refusal) and not self._flushes and not self._later

    def next_flush(self) -> tuple[Flush | None, float | None]:
        """The flush to commit now; else None, and the seconds to wait for `wake`, None for no limit."""
        with self.lock:
            if self.wake.is_set():
                self.wake = runtime.latch()
            self._take_later()
            first = self._flushes[0] if self._flushes else None
            if first is None:
                return None, None
            if first is self.open:
                left = first.begun + self._every - runtime.monotonic()
                if left > 0:
                    return None, left
                self.open = None
            return first, None

    def begin_try(self, flush: Flush) -> bool:
        """Start a try of a flush; returns False if the flush was given up."""
        with self.lock:
            flush.is_trying = not flush.done.is_set()
            return flush.is_trying

    def fail_try(self, flush: Flush, error: Exception) -> None:
        """Record a failed try, which the thread repeats."""
        with self.lock:
            flush.is_trying = False
            self._totals["failures"] += 1
            self.latest_failure = describe(error)

    def commit(self, flush: Flush, keys: int) -> None:
        """Record that a flush with `keys` updates is committed."""
        with self.lock:
            flush.is_trying = False
            if self._finish(flush, None):
                self._totals["flushes"] += 1
                self._totals["keys"] += keys

    def give_up(self, error: Exception) -> list[Flush]:
        """Give up all unfinished flushes; returns them."""
        with self.lock:
            left = list(self._flushes)
            self._totals["lost"] += sum(map(len, self._later))
            self._later.clear()
            for flush in left:
                flush.in_doubt |= flush.is_trying  # the try in progress may still commit
                self._finish(flush, error)
            return left

    def _finish(self, flush: Flush, error: Exception | None) -> bool:
        """Remove a done flush, count its increments, and wake its callers; returns False if that was already done."""
        if flush.done.is_set():
            return False
        self._flushes.remove(flush)
        self._totals["committed" if error is None else "lost"] += flush.count
        flush.finish(error)
        return True

    def forget(self, reason: str) -> None:
        """Empty the buffer in a forked child: the parent's thread commits the flushes, and may hold the lock."""
        self.lock, self.is_held = _new_lock()
        self.open = None
        self._flushes.clear()
        self._later.clear()
        self.refusal = reason
