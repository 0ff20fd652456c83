"""Waiting before a retry: FoundationDB's times, doubled with every failure, at random below that."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from cq import runtime
from cq.store.embedded.binding.error import (
    FUTURE_VERSION,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_OLD,
    FDBError,
)
from cq.store.embedded.binding.future import Flight, FutureVoid

FIRST_SECONDS = 0.01
_GROWTH = 2.0
_NOT_CROWDED = frozenset({TRANSACTION_TOO_OLD, FUTURE_VERSION})


class BackoffDelays:
    """The delays of one transaction; a commit or a reset begins anew."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def next(self, code: int, longest: float) -> float:
        """Seconds to wait after an error."""
        if code in _NOT_CROWDED:
            return min(FIRST_SECONDS, longest)
        delay = min(self._next, longest) * random.random()  # noqa: S311
        self._next = min(self._next * _GROWTH, longest)
        return delay


class BackoffFuture(FutureVoid):
    """Ready after a time; with 1031 if the transaction's own time is over before that."""

    __slots__ = ("_late", "_until")

    def __init__(self, seconds: float, deadline: float | None, flight: Flight | None = None) -> None:
        super().__init__()
        self._flight = flight
        until = runtime.monotonic() + seconds
        self._late = deadline is not None and deadline < until
        self._until = until if deadline is None else min(until, deadline)

    def is_ready(self) -> bool:
        """Whether the time is over."""
        self._land()
        if not self._done and runtime.monotonic() >= self._until:
            self.settle(error=FDBError(TRANSACTION_TIMED_OUT) if self._late else None)
        return self._done

    def block_until_ready(self) -> None:
        """Sleep for the rest of the time."""
        while not self.is_ready():
            runtime.sleep(max(self._until - runtime.monotonic(), 0))

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Have a thread wait, so that the callback comes in time."""
        super().on_ready(callback)
        timer = threading.Timer(max(self._until - runtime.monotonic(), 0), self.block_until_ready)
        timer.daemon = True
        timer.start()
