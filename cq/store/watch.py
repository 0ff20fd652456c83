"""Waiting for watches: `wait_until` for a caller that waits, `WatchSlot` for a loop with other work in between.

Set a watch in a transaction that only reads, and that reads the watched key: then it fires if the key has changed since
that read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from cq import runtime
from cq.backoff import delay_after
from cq.durations import Span, timeout_of
from cq.store.api import Database, Transaction, Void
from cq.store.transact import transact

T = TypeVar("T")


class WatchSlot:
    """Calls back when its current watch fires or fails, and never for an earlier watch.

    Attributes:
        failures: number of watches in a row that have failed.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._watch: Void | None = None

    @property
    def is_free(self) -> bool:
        """Whether it holds no watch that can still fire."""
        return self._watch is None

    def hold(self, watch: Void, fired: Callable[[], object], failed: Callable[[], object]) -> None:
        """Hold this watch, and call `fired()` or `failed()` once it is ready, in any thread.

        Cancels the watch held before.
        """
        before, self._watch = self._watch, watch
        if before is not None:
            before.cancel()
        watch.on_ready(lambda ready: self._ready(ready, fired, failed))

    def cancel(self) -> None:
        """Cancel the current watch."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _ready(self, watch: Any, fired: Callable[[], object], failed: Callable[[], object]) -> None:
        if self._watch is None or watch is not self._watch:  # it was cancelled, which makes it ready as well
            return
        self._watch = None
        try:
            watch.wait()
        except Exception:  # noqa: BLE001 - after any error, it will not fire
            self.failures += 1
            failed()
        else:
            self.failures = 0
            fired()


def wait_until(
    db: Database,
    read: Callable[[Transaction], tuple[T, *tuple[Void | None, ...]]],
    timeout: Span | None = None,
) -> T:
    """Call `read(tr)` in transactions until it returns a result without a watch; return the result.

    Each call after the first follows as soon as a watch of the call before fires. If watches fail, it follows after a
    growing delay.

    Args:
        db: a database of either store.
        read: returns a result, and watches, at least one, that fire when the result may be another; None in the place
            of one: the wait is over. It only reads.
        timeout: after this time, the latest result is returned; None: no limit.

    Raises:
        Exception: those of `transact`.
    """
    seconds = timeout_of(timeout)
    end = math.inf if seconds is None else runtime.monotonic() + seconds
    slots, ready = list[WatchSlot](), runtime.event()
    try:
        while True:
            ready.clear()
            result, *watches = transact(db, read)
            slots += [WatchSlot() for _ in watches[len(slots) :]]
            for slot, watch in zip(slots, watches, strict=False):
                if watch is None:
                    return result
                slot.hold(watch, ready.set, ready.set)
            left = max(0.0, end - runtime.monotonic())
            if not ready.wait(None if seconds is None else left):
                return result
            if failures := max(slot.failures for slot in slots):
                runtime.sleep(min(left, delay_after(failures)))
    finally:
        for slot in slots:
            slot.cancel()
