"""Clocks, sleeping, threads and random bytes, which a simulation can replace.

All code of cq reads clocks, waits, starts threads and draws random bytes through this module, as `runtime.sleep(...)`.
So a simulation can replace the machine, and run a system of many processes from one seed; the rest of cq does not
depend on it. Exceptions are waits for files, SQL databases and child processes, which a simulation does not replace.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time as clocks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final, Protocol

_LONGEST_BLOCK: Final = 1.0


def block_seconds(seconds: float | None) -> float:
    """How long the calling thread should block at a time in a wait of `seconds`; None: in a wait without limit.

    CPython looks for signals before a thread blocks and when a signal interrupts it, but not in between: a signal that
    comes then would be noticed at the end of the wait only. So a long wait of the main thread is one of many short
    ones, and ^C ends it within a second.
    """
    is_main = threading.current_thread() is threading.main_thread()
    longest = _LONGEST_BLOCK if is_main else threading.TIMEOUT_MAX
    return longest if seconds is None else min(max(seconds, 0.0), longest)


class Latch:
    """An event for many threads that is set once.

    It costs a waiting thread much less than `threading.Event`. Each thread that wakes releases the next one, so the
    threads do not compete for one lock.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiting threads. Call it only once."""
        self._is_set = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most `timeout` seconds; return whether it is set."""
        end = inf if timeout is None else clocks.monotonic() + timeout
        while not self._is_set and (left := end - clocks.monotonic()) > 0.0:
            if self._gate.acquire(timeout=block_seconds(left)):
                self._gate.release()  # for the next waiting thread
        return self._is_set


class InterruptibleEvent(threading.Event):
    """An event whose wait ^C always ends, see `block_seconds`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most `timeout` seconds; return whether it is set."""
        end = inf if timeout is None else clocks.monotonic() + timeout
        while (left := end - clocks.monotonic()) > 0.0:
            if super().wait(block_seconds(left)):
                return True
        return self.is_set()


class InterruptibleCondition(threading.Condition):
    """A condition whose wait ^C always ends, see `block_seconds`; so `wait` may return early, as from other causes."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, for at most `timeout` seconds; return whether it was notified."""
        return super().wait(block_seconds(timeout))


class Waitable(Protocol):
    """A future of a store, as far as `Machine.suspend` uses it."""

    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...
    def cancel(self) -> None: ...


class Machine:
    """The real machine."""

    def monotonic(self) -> float:
        """Seconds of a clock that nobody can set."""
        return clocks.monotonic()

    def time_ns(self) -> int:
        """Nanoseconds since 1970 of the system clock, which operators can set."""
        return clocks.time_ns()

    def thread_seconds(self) -> float:
        """Seconds of CPU time of the calling thread."""
        return clocks.thread_time()

    def sleep(self, seconds: float) -> None:
        """Suspend the calling thread for `seconds` seconds."""
        clocks.sleep(seconds)

    def event(self) -> threading.Event:
        """An event for threads."""
        return InterruptibleEvent()

    def latch(self) -> Latch:
        """An event for many threads that is set once."""
        return Latch()

    def own_latch(self) -> Latch:
        """An event for which only the calling thread or task waits, and which only one of its event loop sets."""
        return self.latch()

    def condition(self) -> threading.Condition:
        """A condition with its own lock. Plain locks are not replaced: code never waits while it holds one."""
        return InterruptibleCondition()

    def is_task(self) -> bool:
        """Whether the caller is a task of an event loop, which must not block its thread; see `cq.aio`."""
        return False

    def event_loop(self) -> object | None:
        """The event loop of the calling task; None for a thread."""
        return None

    def is_interruptible(self) -> bool:
        """Whether ^C may raise `KeyboardInterrupt` anywhere in the calling code, as in the main thread."""
        return threading.current_thread() is threading.main_thread()

    def suspend(self, future: Waitable) -> bool:
        """Suspend the calling task until a future is ready; return False if the caller is a thread, which may block.

        If the task is cancelled, the future is cancelled, too.
        """
        return False

    def start_thread(self, target: Callable[[], object], name: str) -> None:
        """Run a function in a daemon thread."""
        threading.Thread(target=target, name=name, daemon=True).start()

    def at_exit(self, call: Callable[[], object]) -> Callable[[], object]:
        """Call a function at a regular end of the process; returns a function that cancels this."""
        atexit.register(call)
        return lambda: atexit.unregister(call)

    def token_bytes(self, count: int) -> bytes:
        """`count` random bytes of cryptographic quality."""
        return secrets.token_bytes(count)


_machines = [Machine()]


@contextmanager
def using(other: Machine) -> Iterator[None]:
    """A context in which all functions of this module use another machine."""
    _machines.append(other)
    try:
        yield
    finally:
        _machines.pop()


def install(machine: Machine) -> None:
    """Use another machine from now on, except in contexts of `using`."""
    _machines[0] = machine


def monotonic() -> float:
    """See `Machine` for this function and the functions below."""
    return _machines[-1].monotonic()


def time() -> float:
    """Seconds since 1970 of the system clock, which operators can set."""
    return _machines[-1].time_ns() / 1e9


def time_ns() -> int:
    return _machines[-1].time_ns()


def thread_seconds() -> float:
    return _machines[-1].thread_seconds()


def sleep(seconds: float) -> None:
    _machines[-1].sleep(seconds)


def event() -> threading.Event:
    return _machines[-1].event()


def latch() -> Latch:
    return _machines[-1].latch()


def own_latch() -> Latch:
    return _machines[-1].own_latch()


def condition() -> threading.Condition:
    return _machines[-1].condition()


def is_task() -> bool:
    return _machines[-1].is_task()


def event_loop() -> object | None:
    return _machines[-1].event_loop()


def is_interruptible() -> bool:
    return _machines[-1].is_interruptible()


def suspend(future: Waitable) -> bool:
    return _machines[-1].suspend(future)


def start_thread(target: Callable[[], object], name: str) -> None:
    _machines[-1].start_thread(target, name)


def at_exit(call: Callable[[], object]) -> Callable[[], object]:
    return _machines[-1].at_exit(call)


def token_bytes(count: int) -> bytes:
    return _machines[-1].token_bytes(count)
