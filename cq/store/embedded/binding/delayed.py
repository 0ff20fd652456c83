"""Futures that become ready after some time, without a thread unless one has a callback: retry delays,
and reads at a future version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cq import runtime
from cq.store.embedded.binding.error import TRANSACTION_TIMED_OUT, FDBError
from cq.store.embedded.binding.future import (
    Cancellation,
    F,
    Future,
    FutureRows,
    FutureVoid,
    Key,
    T,
    Value,
)
from cq.store.embedded.binding.keys import Row


class DelayedFuture(Future[T]):
    """A future that becomes ready at a certain time: the next call of a thread that asks or waits for it does this."""

    __slots__ = ("_outcome", "_until")

    def delay(self, seconds: float, error: FDBError | None, deadline: float | None) -> None:
        """Become ready after `seconds`, with an error or None; with 1031 at the transaction's deadline, if earlier."""
        self._until, self._outcome = runtime.monotonic() + seconds, error
        if deadline is not None and deadline < self._until:
            self._until, self._outcome = deadline, FDBError(TRANSACTION_TIMED_OUT)

    def is_ready(self) -> bool:
        """Whether its time has come."""
        self._take()
        if not self._done and runtime.monotonic() >= self._until:
            self.settle(error=self._outcome)
        return self._done

    def block_until_ready(self) -> None:
        """Sleep until its time."""
        while not self.is_ready():
            runtime.sleep(max(self._until - runtime.monotonic(), 0))

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Start a timer for the callback: no other thread makes this future ready."""
        super().on_ready(callback)
        timer = threading.Timer(max(self._until - runtime.monotonic(), 0), self.block_until_ready)
        timer.daemon = True
        timer.start()


class _DelayedVoid(DelayedFuture[None], FutureVoid):
    __slots__ = ()


class _DelayedValue(DelayedFuture[bytes | None], Value):
    __slots__ = ()


class _DelayedKey(DelayedFuture[bytes], Key):
    __slots__ = ()


class _DelayedRows(DelayedFuture[tuple[list[Row], bool]], FutureRows):
    __slots__ = ()


_DELAYED: dict[Any, Any] = {
    FutureVoid: _DelayedVoid,
    Value: _DelayedValue,
    Key: _DelayedKey,
    FutureRows: _DelayedRows,
}


def delayed(
    kind: type[F],
    seconds: float,
    error: FDBError | None,
    deadline: float | None,
    cancellation: Cancellation,
) -> F:
    """A future of one of the kinds of `_DELAYED`; see `DelayedFuture.delay`."""
    future: Any = _DELAYED[kind]()
    future.delay(seconds, error, deadline)
    future._cancellation = cancellation
    found: F = future
    return found
