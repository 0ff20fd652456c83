"""Reads of a window that merge its slices, for combiners without an inverse: a maximum, a union, sketches.

The slices are the periods of a level of a roll-up: the level has a value for each key and slice, and workers delete the
slices that have left. The queue itself keeps the latest update of each key, so that its keys can be listed. It expires
when no slice of the key is in the window any more. A read selects the slices by its own clock, so it is right even if
no worker deletes any.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from cq.combiners import Combiner
from cq.config.queue import QueueConfig, read_config
from cq.config.rollup import level_key
from cq.config.window import WindowSpec
from cq.encoding import codec
from cq.keys import QueueKeys, place
from cq.queue.combine_queue import Page
from cq.queue.slots import combined
from cq.store.api import TransactionRead, snapshot_of
from cq.windows.pending import read_pending_updates

_SECOND_MS: Final = 1_000
_READS: Final = 5_000  # of values, in flight at a time


class SliceReads(NamedTuple):
    """One read of a window: the queue's configuration and combiner, the time, and whether queued updates count.

    Attributes:
        config: the configuration of a queue whose window is merged.
        combiner: its combiner.
        now: the end of the window, in milliseconds since 1970.
        pending: whether queued updates count.
    """

    config: QueueConfig
    combiner: Combiner
    now: int
    pending: bool

    def totals(self, tr: TransactionRead, wanted: Collection[Any]) -> dict[Any, Any]:
        """{key: combination of its slices in the window}, None for a key without any.

        Reads one value for each key and slice, each by a request of its own. Raises the errors of
        `read_pending_updates`.
        """
        name = self._level
        level = read_config(snapshot_of(tr), name)
        check, encode, queue = self.config.key.encoder(), level.key.encoder(), QueueKeys(name)
        for key in wanted:
            check(key)  # so that the message names the queue's own type
        times = slice_times(self._window, self.now)
        encoded = {key: [encode(level_key(key, time)) for time in times] for key in wanted}
        waiting = (
            read_pending_updates(snapshot_of(tr), level, [each for some in encoded.values() for each in some])
            if self.pending
            else {}
        )
        found, keys, together = {}, list(encoded), max(1, _READS // len(times))
        for start in range(0, len(keys), together):
            some = keys[start : start + together]
            futures = {key: [tr.get(queue.value(each)) for each in encoded[key]] for key in some}
            for key in some:
                values: list[Any] = []
                for future, each in zip(futures[key], encoded[key], strict=True):
                    values += [] if future.value is None else [codec.decode(future.value)]
                    values += waiting.get(each, ())
                found[key] = combined(self.combiner, key, values) if values else None
        return found

    def page(self, tr: TransactionRead, keys: Page[Any, Any], after: bytes) -> Page[Any, Any]:
        """The totals of a page of the queue's keys that begins after a place; with `pending`, of new keys, too."""
        wanted = [key for key, _ in keys.items]
        if self.pending:
            wanted = self._with_queued(tr, wanted, after, keys.continuation)
        totals = self.totals(tr, wanted)
        return Page([(key, total) for key, total in totals.items() if total is not None], keys.continuation)

    def _with_queued(
        self, tr: TransactionRead, keys: Sequence[Any], after: bytes, end: bytes | None
    ) -> list[Any]:
        encode = self.config.key.encoder()
        queued = read_pending_updates(snapshot_of(tr), self.config)
        inside = {each for each in queued if place(each) > after and (end is None or place(each) <= end)}
        return list(map(self.config.key.decode, sorted({*map(encode, keys), *inside}, key=place)))

    @property
    def _window(self) -> WindowSpec:
        window = self.config.window
        if window is None:
            raise TypeError(f"queue {self.config.name!r} has no window")
        return window

    @property
    def _level(self) -> str:
        if self.config.rollup is None:
            raise TypeError(f"the window of queue {self.config.name!r} has no slices")
        return self.config.rollup.levels[0].queue_of(self.config.name)


def slice_times(window: WindowSpec, now: int) -> range:
    """The starts, in seconds since 1970, of the slices that are in the window at the time `now` in milliseconds.

    These are the slices of updates that `Window.add` takes at this time: not expired, and at most one slice ahead.

    >>> list(slice_times(WindowSpec(20_000, 10_000), 1_005_000))
    [980, 990, 1000, 1010]
    """
    step = window.slice // _SECOND_MS
    first, last = (now - window.width) // window.slice, (now + window.slice) // window.slice
    return range(first * step, (last + 1) * step, step)
