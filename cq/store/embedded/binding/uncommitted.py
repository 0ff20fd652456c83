"""Futures that the commit of their transaction makes ready: versionstamps and watches.

Until the commit begins, they fail with 1031 at the transaction's deadline, also if no further call of the transaction
notices that its time is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cq import runtime
from cq.store.embedded.binding.error import TRANSACTION_TIMED_OUT, FDBError
from cq.store.embedded.binding.future import Future, Key, T, callbacks_lock


class Uncommitted(Future[T]):
    """A future that fails at a deadline: the next thread that asks or waits for it does this.

    It needs a thread only while it has both a callback and a deadline.
    """

    __slots__ = ("_deadline", "_served")

    def __init__(self) -> None:
        super().__init__()
        self._deadline: float | None = None
        self._served: float | None = None  # the deadline for which there is a thread

    def set_deadline(self, deadline: float | None) -> None:
        """Set the time on the clock of `runtime.monotonic`, or None for no deadline; waiting threads obey it, too."""
        with callbacks_lock:
            if self._done or deadline == self._deadline:
                return
            self._deadline, self._served = deadline, None
            # All who wait at the former gate go on, and wait at the new one until the new deadline.
            former, self._gate = self._gate, threading.Lock()
            self._gate.acquire()
            former.release()
        self._serve_callbacks()

    def is_ready(self) -> bool:
        """Whether `wait()` would not block."""
        deadline = self._deadline
        if not self._done and deadline is not None and runtime.monotonic() >= deadline:
            self.settle(error=FDBError(TRANSACTION_TIMED_OUT))
        return self._done

    def block_until_ready(self) -> None:
        """Wait until the future is ready, without raising its error."""
        if self.is_ready() or runtime.suspend(self):
            return
        while not self._done:
            self._wait_at_gate()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(future)` once it is ready: at once, or later in the thread that makes it ready."""
        self.is_ready()
        super().on_ready(callback)
        self._serve_callbacks()

    def _serve_callbacks(self) -> None:
        with callbacks_lock:
            deadline = self._deadline
            if not self._callbacks or deadline is None or deadline == self._served:
                return
            self._served = deadline
        threading.Thread(target=self._wait_until, args=(deadline,), name="cq-deadline", daemon=True).start()

    def _wait_until(self, deadline: float) -> None:
        """Make it fail at the deadline, unless it becomes ready or gets another deadline before."""
        while not self._done and self._deadline == deadline:
            self._wait_at_gate()

    def _wait_at_gate(self) -> None:
        """Wait until it is ready, its deadline has come, or it has another one."""
        gate, deadline = self._gate, self._deadline  # in this order: a former gate is open
        if gate.acquire(timeout=-1 if deadline is None else max(deadline - runtime.monotonic(), 0)):
            gate.release()
        self.is_ready()


class Stamp(Uncommitted[bytes], Key):
    """The versionstamp of a transaction."""

    __slots__ = ()
