"""What cq takes from the machine that it runs on: time, waiting, threads, and random bytes.

All code that tells the time, waits, starts a thread or draws random bytes does so through this module, called as
`runtime.sleep(...)`. So a simulation can put another machine in the place of the real one, and run a whole system of
many processes from one seed; nothing else of cq knows of simulations. What waits for the world outside stays with
that: for files, SQL databases and child processes.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time as clocks
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Latch:
    """An event that many threads wait for and that is set once: each lets the next one through.

    It costs a waiter much less than `threading.Event`, and those who are let through do not jostle for one lock.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Let all through; to be called once."""
        self._is_set = True
        self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for so many seconds at most; whether it is."""
        if not self._is_set and self._gate.acquire(timeout=-1 if timeout is None else timeout):
            self._gate.release()
        return self._is_set


class Machine:
    """The real one."""

    def monotonic(self) -> float:
        """Seconds, by a clock that is never set."""
        return clocks.monotonic()

    def time_ns(self) -> int:
        """Nanoseconds since 1970, by a clock that may be set."""
        return clocks.time_ns()

    def thread_seconds(self) -> float:
        """Seconds for which the calling thread has used a processor."""
        return clocks.thread_time()

    def sleep(self, seconds: float) -> None:
        """Wait for so long."""
        clocks.sleep(seconds)

    def event(self) -> threading.Event:
        """What threads wait for."""
        return threading.Event()

    def latch(self) -> Latch:
        """What many threads wait for once."""
        return Latch()

    def condition(self) -> threading.Condition:
        """What threads wait for, with its lock. Plain locks need no seam: none is held while anything is waited for."""
        return threading.Condition()

    def start_thread(self, target: Callable[[], object], name: str) -> None:
        """Run a function in a thread that ends with the process."""
        threading.Thread(target=target, name=name, daemon=True).start()

    def at_exit(self, call: Callable[[], object]) -> Callable[[], object]:
        """Call a function when the process ends in good order; what this returns takes that back."""
        atexit.register(call)
        return lambda: atexit.unregister(call)

    def token_bytes(self, count: int) -> bytes:
        """So many random bytes that nobody can guess."""
        return secrets.token_bytes(count)


_used = [Machine()]


@contextmanager
def using(other: Machine) -> Iterator[None]:
    """Put another machine in the place of this one, for all that is made and called meanwhile."""
    _used.append(other)
    try:
        yield
    finally:
        _used.pop()


def monotonic() -> float:
    """See `Machine`, here and below."""
    return _used[-1].monotonic()


def time() -> float:
    """Seconds since 1970, by a clock that may be set."""
    return _used[-1].time_ns() / 1e9


def time_ns() -> int:
    return _used[-1].time_ns()


def thread_seconds() -> float:
    return _used[-1].thread_seconds()


def sleep(seconds: float) -> None:
    _used[-1].sleep(seconds)


def event() -> threading.Event:
    return _used[-1].event()


def latch() -> Latch:
    return _used[-1].latch()


def condition() -> threading.Condition:
    return _used[-1].condition()


def start_thread(target: Callable[[], object], name: str) -> None:
    _used[-1].start_thread(target, name)


def at_exit(call: Callable[[], object]) -> Callable[[], object]:
    return _used[-1].at_exit(call)


def token_bytes(count: int) -> bytes:
    return _used[-1].token_bytes(count)
