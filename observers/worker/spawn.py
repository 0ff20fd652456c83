"""Start of helper processes by `multiprocessing`, and their end with the parent process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SAFE_PATH_ENV: Final = "PYTHONSAFEPATH"


@contextmanager
def starting() -> Iterator[None]:
    """A context to start `multiprocessing` processes in: ^C is delayed, and no code comes from the current folder.

    A spawned process runs `python -c`, which imports modules of `multiprocessing` before it receives the parent's
    import path. Without `$PYTHONSAFEPATH` it would import a `signal.py` in the current folder instead of Python's.
    """
    before = os.environ.get(_SAFE_PATH_ENV)
    os.environ[_SAFE_PATH_ENV] = "1"
    try:
        with _without_interrupts():
            yield
    finally:
        # Restored, because other processes that the application starts may need modules of the current folder.
        if before is None:
            del os.environ[_SAFE_PATH_ENV]
        else:
            os.environ[_SAFE_PATH_ENV] = before


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay ^C: it must not interrupt a half-started process, and the new process must not receive it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda *what: came.append(what))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came and callable(handler):
            handler(*came[0])


def keep_no_semaphores() -> None:
    """Make this process create unnamed semaphores, so that they end with it even if it is killed.

    The binding creates a `multiprocessing` semaphore for each thread that waits for a cluster. In a process started by
    `spawn` such a semaphore has a name and outlives a kill, and Python warns of "leaked semaphore objects" when the
    parent ends. With the start method `fork` a semaphore loses its name at once; this process never forks.
    """
    multiprocessing.set_start_method("fork", force=True)


def exit_with_parent() -> None:
    """End this process when its parent has ended, however it ended. To be run in a thread."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
