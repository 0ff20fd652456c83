"""How a process starts others that help it, and how these end with it."""

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
    """Start processes of `multiprocessing` inside this: ^C is delayed, and the current folder is not searched for code.

    Such a process runs `python -c`, which imports the modules of `multiprocessing` before it takes over the parent's
    import path. Without `$PYTHONSAFEPATH` a `signal.py` in the current folder would be run instead of Python's.
    """
    before = os.environ.get(_SAFE_PATH_ENV)
    os.environ[_SAFE_PATH_ENV] = "1"
    try:
        with _without_interrupts():
            yield
    finally:
        # Only these processes: those that an application starts find its modules as before.
        if before is None:
            del os.environ[_SAFE_PATH_ENV]
        else:
            os.environ[_SAFE_PATH_ENV] = before


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay ^C: a process that was started in part would complain, and one that starts must not get it at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda *what: came.append(what))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came and callable(handler):
            handler(*came[0])


def keep_no_semaphores() -> None:
    """Have the semaphores of this process end with it, also when it is killed.

    The binding takes a semaphore of `multiprocessing` for each thread that waits for a cluster. In a process started by
    `spawn` such a semaphore has a name, under which it outlives a kill, and Python warns of "leaked semaphore objects"
    when the parent ends. With `fork`, which this process never does, a semaphore loses its name at once.
    """
    multiprocessing.set_start_method("fork", force=True)


def exit_with_parent() -> None:
    """End this process when its parent has ended: nobody is left to do so. To be run in a thread."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
