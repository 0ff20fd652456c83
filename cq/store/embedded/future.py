"""Futures with the binding's methods: errors are raised when a future is waited for, not when it is created.

Reads of a local file complete at once. Only commits made by another thread, watches, versionstamps and the delays of
retries really block.

On a cluster, a result that has not arrived becomes the error 1025 when its transaction is garbage collected, reset or
cancelled. A local result arrives at once, so it counts as not arrived until the caller takes it (see `Cancellation`):
code that drops a transaction too early fails on this store as well.
"""

from __future__ import annotations

import operator
import sys
import threading
import traceback
from collections.abc import Callable
from copy import copy
from typing import Any, Generic, TypeVar

from cq import runtime
from cq.store.api import TRANSACTION_TIMED_OUT
from cq.store.embedded.error import OPERATION_CANCELLED, FDBError

T = TypeVar("T")

# Reentrant: the garbage collector may drop a transaction, which settles its futures, in a thread that holds this lock.
callbacks_lock = threading.RLock()
_allocate = threading.Lock


def note_fork() -> None:
    """In a forked child: make the lock of callbacks anew."""
    global callbacks_lock  # noqa: PLW0603 - a thread that does not exist in the child may have held it
    callbacks_lock = threading.RLock()


class Cancellation:
    """The end of one try of a transaction; the results that the caller has not taken yet share it."""

    __slots__ = ("error",)

    def __init__(self, error: int | None = None) -> None:
        self.error = error  # set when the try ends: the results become this error


class Future(Generic[T]):
    """A result of type T, or an error."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_cancellation",
        "_done",
        "_error",
        "_gate",
        "_result",
    )

    def __init__(self) -> None:
        self._done = False
        self._cancellation: Cancellation | None = None  # None: the caller has taken the result
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        # Locked until the future is ready; each waiter acquires and releases it. A lock is cheaper than an event.
        self._gate = _allocate()
        self._gate.acquire()

    def is_ready(self) -> bool:
        """Whether `wait()` would not block."""
        self._take()
        return self._done

    def block_until_ready(self) -> None:
        """Wait until the future is ready, without raising its error."""
        if not self.is_ready() and not runtime.suspend(self):
            while not self._done:
                if self._gate.acquire(timeout=runtime.block_seconds(None)):
                    self._gate.release()

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(future)` once it is ready: at once, or later in the thread that makes it ready."""
        self.is_ready()
        with callbacks_lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def cancel(self) -> None:
        """Fail with 1101, unless the future is ready; a result that the caller has not taken counts as not ready."""
        if self._cancellation is None:
            self.settle(error=FDBError(OPERATION_CANCELLED))
        elif self._cancellation.error is None:
            self._cancellation = Cancellation(OPERATION_CANCELLED)

    def get(self) -> T:
        """Wait for the result."""
        cancellation = self._cancellation
        if self._done and (cancellation is None or cancellation.error is None):
            self._cancellation = None  # as `_take` does, but inline: this path is hot
        else:
            self.block_until_ready()
        if self._error is not None:
            # A copy, as an error refers to the frames that it has passed, and so to their transactions.
            raise copy(self._error)
        return self._result  # type: ignore[return-value]

    def wait(self) -> T:
        """Wait for the result, and return it."""
        return self.get()

    def settle(self, result: T | None = None, error: BaseException | None = None) -> bool:
        """Make the future ready; return False if it was ready before."""
        with callbacks_lock:
            if self._done:
                return False
            self._result, self._error, self._done = result, error, True
            callbacks, self._callbacks = self._callbacks, []
        self.wake()
        # Outside the lock: a callback may wait for another future.
        for callback in callbacks:
            self._call(callback)
        return True

    def wake(self) -> None:
        """Let one waiting thread go on, which lets the next one go on if the future is ready."""
        try:  # noqa: SIM105 - `suppress` would cost more than the call
            self._gate.release()
        except RuntimeError:
            pass  # not locked: a thread was woken and has not yet run

    def _take(self) -> None:
        """Make the result independent of its try; if the try has ended before, the result becomes its error."""
        cancellation, self._cancellation = self._cancellation, None
        if cancellation is not None and cancellation.error is not None:
            error = FDBError(cancellation.error)
            if not self.settle(error=error):
                self._error = error

    def _call(self, callback: Callable[[Any], None]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - as in the binding
            sys.stderr.write("Discarding uncaught exception from user FDB callback:\n")
            traceback.print_exc(file=sys.stderr)

    @staticmethod
    def wait_for_any(*futures: Future[Any]) -> int:
        """Wait until one of the futures is ready, and return its index."""
        if not futures:
            raise ValueError("wait_for_any requires at least one future")
        first: list[int] = []
        ready = runtime.event()

        def note(number: int) -> Callable[[Any], None]:
            def callback(_: Any) -> None:
                first.append(number)
                ready.set()

            return callback

        for number, future in enumerate(futures):
            future.on_ready(note(number))
        ready.wait()
        return first[0]


class FutureVoid(Future[None]):
    """A future of an event."""

    __slots__ = ()


class Delay(FutureVoid):
    """Ready after some seconds; if `deadline` is earlier, it fails with 1031 then."""

    __slots__ = ("_error_then", "_until")

    def __init__(self, seconds: float, deadline: float | None, cancellation: Cancellation) -> None:
        super().__init__()
        self._cancellation = cancellation
        self._until = runtime.monotonic() + seconds
        self._error_then: FDBError | None = None
        if deadline is not None and deadline < self._until:
            self._until, self._error_then = deadline, FDBError(TRANSACTION_TIMED_OUT)

    def is_ready(self) -> bool:
        """See `Future.is_ready`."""
        if not super().is_ready() and runtime.monotonic() >= self._until:
            self.settle(error=self._error_then)
        return self._done

    def block_until_ready(self) -> None:
        """See `Future.block_until_ready`."""
        while not self.is_ready():
            runtime.sleep(max(self._until - runtime.monotonic(), 0))

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """See `Future.on_ready`; no other thread makes it ready, so one is started."""
        super().on_ready(callback)
        runtime.start_thread(self.block_until_ready, "cq-delay")


class FutureInt64(Future[int]):
    """A future of a number."""

    __slots__ = ()


class FutureKeyArray(Future[list[bytes]]):
    """A future of some keys."""

    __slots__ = ()


def _on_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that applies a function to the result, and to those of other futures."""

    def method(self: FutureString[Any], *others: Any) -> Any:
        value = self.get()
        if value is None:
            raise TypeError("the key is absent: there is no value to use")
        return function(value, *map(_plain, others))

    return method


class FutureString(Future[T]):
    """A future that can be used like the bytes of its result; each use waits for it.

    As in the binding, `isinstance(future, bytes)` is true, also for an absent value. FoundationDB's layers need this.
    """

    __slots__ = ()

    __class__ = property(lambda _: bytes)

    @property
    def value(self) -> T:
        """The result; waits for it."""
        return self.get()

    def wait(self) -> Any:
        """Wait for the result, and return the future, which can be used like the result."""
        self.get()
        return self

    def as_foundationdb_key(self) -> T:
        return self.get()

    def as_foundationdb_value(self) -> T:
        return self.get()

    def __str__(self) -> str:
        return str(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __eq__(self, other: object) -> bool:
        return bool(self.get() == _plain(other))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _on_result(getattr)(self, name)

    __bytes__ = _on_result(bytes)
    __int__ = _on_result(int)
    __len__ = _on_result(len)
    __hash__ = _on_result(hash)
    __getitem__ = _on_result(operator.getitem)
    __add__ = _on_result(operator.add)
    __radd__ = _on_result(lambda value, other: other + value)
    __mul__ = __rmul__ = _on_result(operator.mul)
    __lt__ = _on_result(operator.lt)
    __le__ = _on_result(operator.le)
    __gt__ = _on_result(operator.gt)
    __ge__ = _on_result(operator.ge)


def _plain(other: Any) -> Any:
    return other.get() if isinstance(other, FutureString) else other


class Value(FutureString[bytes | None]):
    """A future of a value: `.value` is None and `.present()` False if the key is absent."""

    __slots__ = ()

    def present(self) -> bool:
        """Whether the key exists."""
        return self.get() is not None


class Key(FutureString[bytes]):
    """A future of a key or a versionstamp."""

    __slots__ = ()


F = TypeVar("F", bound=Future[Any])


def ready(kind: type[F], result: Any, cancellation: Cancellation | None = None) -> F:
    """A future with a result, which the caller must take before the end of its try."""
    future = kind.__new__(kind)
    future._done, future._result, future._error, future._cancellation = True, result, None, cancellation
    return future


def failed(kind: type[F], error: BaseException) -> F:
    """A future with an error, without the frames that the error has passed."""
    future = kind.__new__(kind)
    future._done, future._result, future._cancellation = True, None, None
    future._error = error.with_traceback(None)
    return future
