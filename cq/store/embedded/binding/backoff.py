"""Retry delays, as in FoundationDB: random, with a maximum that doubles with every failure."""

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
from cq.store.embedded.binding.future import Cancellation, FutureVoid

FIRST_SECONDS = 0.01
_GROWTH = 2.0
# These errors are not caused by contention, so a longer delay would not help.
_NOT_CROWDED = frozenset({TRANSACTION_TOO_OLD, FUTURE_VERSION})


class BackoffDelays:
    """The delays of one transaction. A commit or a reset starts again with new delays."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def next(self, code: int, longest: float) -> float:
        """The seconds to wait after an error, at most `longest`."""
        if code in _NOT_CROWDED:
            return min(FIRST_SECONDS, longest)
        delay = min(self._next, longest) * random.random()  # noqa: S311
        self._next = min(self._next * _GROWTH, longest)
        return delay


class BackoffFuture(FutureVoid):
    """Ready after `seconds`; fails with 1031 if the timeout of the transaction expires first."""

    __slots__ = ("_late", "_until")

    def __init__(self, seconds: float, deadline: float | None, cancellation: Cancellation) -> None:
        super().__init__()
        self._cancellation = cancellation
        until = runtime.monotonic() + seconds
        self._late = deadline is not None and deadline < until
        self._until = until if deadline is None else min(until, deadline)

    def is_ready(self) -> bool:
        """Whether the delay is over."""
        self._take()
        if not self._done and runtime.monotonic() >= self._until:
            self.settle(error=FDBError(TRANSACTION_TIMED_OUT) if self._late else None)
        return self._done

    def block_until_ready(self) -> None:
        """Sleep until the delay is over."""
        while not self.is_ready():
            runtime.sleep(max(self._until - runtime.monotonic(), 0))

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Start a timer for the callback: no other thread makes this future ready."""
        super().on_ready(callback)
        timer = threading.Timer(max(self._until - runtime.monotonic(), 0), self.block_until_ready)
        timer.daemon = True
        timer.start()
