"""What an emitter gathers: checked increments, and the flushes that they go into, each merged by key.

A flush is what one transaction will add. So that it fits into one, it is measured as if nothing in it were merged:
merging only ever makes it smaller. Where a combiner does not merge what it is given (it raises, or its result is none
that the queue takes), the increments go to the store one by one, and workers deal with them as with all others.
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
from cq.errors import TooLarge
from cq.queue.packing import check_update, split_pairs
from cq.store.api import Transaction

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

FLUSH_BYTES: Final = 500_000
"""What a transaction adds at most; FoundationDB's should stay below 1 MB."""
Also = Callable[[Transaction], object]
"""What a caller writes, too, in the transaction that commits its increments."""
_PLAIN_BYTES: Final = 12  # of CBOR for an int, and before a key
_SHORT: Final = 1_000
_loop_of: Final = methodcaller("get_loop")


class Increment(NamedTuple):
    """An update of a key that the queue takes, and its size in bytes, the key included."""

    key: Any
    update: Any
    size: int


class Intake:
    """What an emitter takes and how it merges it: the queue's configuration and combiner.

    Attributes:
        plain_key: the type of keys, if ints are summed up for such ones; None to look closer at each increment.
    """

    def __init__(self, config: QueueConfig, combiner: Combiner) -> None:
        self.config = config
        self.combiner = combiner
        self.plain_key = config.key.plain if combiner is sum_ and config.value.types == (int,) else None
        self._encode = config.key.encoder()

    def plain_size(self, key: Any) -> int:
        """The size of an increment of a plain key by a small int, about; raises `InvalidData`, `TooLarge`."""
        if type(key) is str and len(key) <= _SHORT and key.isascii():
            return len(key) + _PLAIN_BYTES  # always a key: there is no need to encode it
        return len(self._encode(key)) + _PLAIN_BYTES

    def increments(self, updates: Any) -> list[Increment]:
        """Check updates, which all go into one flush; raises `InvalidData`, `TooLarge`."""
        found = [self._increment(key, update) for key, update in zip(*split_pairs(updates), strict=True)]
        if (size := sum(each.size for each in found)) > FLUSH_BYTES:
            raise TooLarge(
                f"{size:,} bytes of updates at once are more than the {FLUSH_BYTES:,} that an emitter takes: "
                "emit them in smaller parts, or add them by transactions of your own"
            )
        return found

    def _increment(self, key: Any, update: Any) -> Increment:
        encoded = self._encode(key)
        check_update(self.config, key, update)
        # What the caller may still change must not change here; and workers, too, combine what CBOR gives back.
        own = codec.stored_copy(update)
        return Increment(key, own, len(encoded) + check_update(self.config, key, own))

    def is_summed(self, update: Any) -> bool:
        """Whether an update is added to the others of its key at once: small ints are, and their sum stays small."""
        return self.combiner is sum_ and type(update) is int and is_int64(update)

    def merged(self, increments: Sequence[Increment]) -> list[tuple[Any, Any]]:
        """Pairs of key and update that combine to the same as these of one key, in their order: as few as can be."""
        key = increments[0].key
        if len(increments) == 1:
            return [(key, increments[0].update)]
        try:
            value = self.combiner.combine(key, [each.update for each in increments])
            if check_update(self.config, key, value) <= sum(each.size for each in increments):
                return [(key, value)]
        except Exception:  # noqa: BLE001, S110 - what cannot be merged is for a worker to combine, or to set aside
            pass
        middle = len(increments) // 2
        return self.merged(increments[:middle]) + self.merged(increments[middle:])


class Flush:
    """Increments that are committed together, and what has become of them.

    Its emitter's lock is held by whoever calls `add`, `awaited` or `settle`, or changes anything else of it.

    Args:
        intake: how it is merged.
        most: how many increments it takes; 0 once it has no room for more bytes.
        enough: how many make it due; at most `most`.
        number: which one of its emitter's it is; with the emitter's id it makes its operation id.

    Attributes:
        sums: of small ints, by key; they need no order.
        count: how many increments it holds.
        size: their bytes, as if none but those in `sums` were merged.
        begun: when it was made, by `runtime.monotonic`.
        in_doubt: whether a try of it may have committed, or may commit later. This ends only with a known commit.
        done: set once it is committed, or given up.
        error: why it was given up.
        also: what goes with them, from all callers.
        awaiting: what tasks await, of any event loop: each is ready when the flush is done.
    """

    def __init__(self, intake: Intake, most: int, enough: int, number: int) -> None:
        self.most = most
        self.enough = min(most, enough)
        self.sums: dict[Any, int] = {}
        self.count = self.size = 0
        self.number = number
        self.begun = runtime.monotonic()
        self.in_doubt = False
        self.done = runtime.latch()
        self.error: Exception | None = None
        self.also: list[Also] = []
        self.awaiting: list[Future[None]] = []
        self._intake = intake
        self._others: dict[Any, list[Increment]] = {}

    def doubt(self) -> None:
        """Note that a try may have committed, or may commit later."""
        self.in_doubt = True

    def has_room(self, size: int) -> bool:
        """Whether increments of so many bytes fit in."""
        return self.size + size <= FLUSH_BYTES

    def add(self, increment: Increment) -> None:
        """Take an increment in."""
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
        """Count bytes."""
        self.size += size
        if self.size >= FLUSH_BYTES:
            self.most = self.enough = 0

    def updates(self) -> Mapping[Any, int] | list[tuple[Any, Any]]:
        """What to add to the queue, merged by key, the updates of each key in the order of the calls."""
        if not self._others:
            return self.sums
        found = list(self.sums.items())
        for increments in self._others.values():
            found += self._intake.merged(increments)
        return found

    def awaited(self, loop: AbstractEventLoop) -> Future[None]:
        """A future of an event loop that is ready when the flush, which is not done yet, is."""
        future: Future[None] = loop.create_future()
        self.awaiting.append(future)
        return future

    def settle(self, error: Exception | None) -> None:
        """It is committed, or given up for this reason."""
        self.error = error
        self.done.set()
        awaiting, self.awaiting = self.awaiting, []
        loops = set(map(_loop_of, awaiting))
        for loop in loops:
            futures = awaiting if len(loops) == 1 else [each for each in awaiting if each.get_loop() is loop]
            with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
                loop.call_soon_threadsafe(_set_all, futures)


def _set_all(futures: Iterable[Future[None]]) -> None:
    """Wake all who await, in one step of their loop."""
    for future in futures:
        if not future.done():  # whoever awaited it has been cancelled
            future.set_result(None)
