"""Increments and flushes of an emitter: each flush holds the checked increments of one transaction, merged by key.

So that a flush fits into its transaction, its size is measured without merging: merging can only make it smaller. If
the combiner does not merge some increments (it raises, or the queue does not take its result), these go to the store
one by one, and workers process them like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cq import runtime
from cq.combiners import Combiner, sum_
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.encoding.codec import is_int64
from cq.errors import InvalidData, TooLarge
from cq.queue.checks import AddCheck
from cq.queue.packing import split_pairs
from cq.store.api import Transaction

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

FLUSH_BYTES: Final = 500_000
"""Maximum bytes that a transaction writes for updates: with all else it should stay below 1 MB."""
Also = Callable[[Transaction], object]
"""A function of a caller that writes additional keys in the transaction of its increments."""
_PLAIN_BYTES: Final = 12  # of CBOR for an int, and before a key
_SHORT: Final = 1_000
_loop_of: Final = methodcaller("get_loop")


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

    def refused(self, updates: Any) -> dict[Any, InvalidData]:
        """{key: error} of the updates that the queue refuses now."""
        found = {}
        for key, update in zip(*split_pairs(updates), strict=True):
            try:
                self.adds.check(key, update)
            except InvalidData as error:
                found[key] = error
        return found

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
        except Exception:  # noqa: BLE001, S110 - a worker combines increments that cannot be merged, or sets them aside
            pass
        middle = len(increments) // 2
        return self.merged(increments[:middle]) + self.merged(increments[middle:])


class Flush:
    """Increments committed together in one transaction, and their result.

    The caller of `add`, `awaited` or `finish`, and of any other change, must hold the emitter's lock.

    Args:
        intake: the checks and merges of the emitter.
        most: maximum number of increments; 0 when the flush has no room for more bytes.
        enough: number of increments that make the flush due; at most `most`.
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
        also: additional writes of all callers.
        awaiting: futures of tasks, of any event loop; each is resolved when the flush is done.
    """

    def __init__(self, intake: Intake, most: int, enough: int, number: int) -> None:
        self.most = most
        self.enough = min(most, enough)
        self.sums: dict[Any, int] = {}
        self.count = self.size = 0
        self.number = number
        self.begun = runtime.monotonic()
        self.is_trying = False
        self.in_doubt = False
        self.done = runtime.latch()
        self.error: Exception | None = None
        self.also: list[Also] = []
        self.awaiting: list[Future[None]] = []
        self._intake = intake
        self._others: dict[Any, list[Increment]] = {}

    def doubt(self) -> None:
        """Record that a try may have committed, or may commit later."""
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
            self.most = self.enough = 0

    def updates(self) -> Mapping[Any, int] | list[tuple[Any, Any]]:
        """The updates to add to the queue, merged by key, those of each key in the order of the calls."""
        if not self._others:
            return self.sums
        found = list(self.sums.items())
        for increments in self._others.values():
            found += self._intake.merged(increments)
        return found

    def awaited(self, loop: AbstractEventLoop) -> Future[None]:
        """A new future, resolved in its event loop when the flush is done; the flush must not be done yet."""
        future: Future[None] = loop.create_future()
        self.awaiting.append(future)
        return future

    def finish(self, error: Exception | None) -> None:
        """Mark the flush as committed, or as given up with an error, and wake all waiting callers."""
        self.error = error
        self.done.set()
        awaiting, self.awaiting = self.awaiting, []
        loops = set(map(_loop_of, awaiting))
        for loop in loops:
            futures = awaiting if len(loops) == 1 else [each for each in awaiting if each.get_loop() is loop]
            with suppress(RuntimeError):  # the loop is closed, with all its tasks
                loop.call_soon_threadsafe(_set_all, futures)


def _set_all(futures: Iterable[Future[None]]) -> None:
    """Resolve all futures in one step of their loop."""
    for future in futures:
        if not future.done():  # else its task was cancelled
            future.set_result(None)
