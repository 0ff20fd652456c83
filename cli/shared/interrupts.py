"""^C: while modules are imported, and where Python ignores it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.02


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Let ^C end the process at once: in an import, KeyboardInterrupt would print a traceback or become another error.

    Does nothing in another thread than the main one, or if the process ignores or handles ^C.
    """
    handled = signal.getsignal(signal.SIGINT)
    if handled is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handled)


def repeat_ignored_interrupts() -> None:
    """From now on, repeat each interrupt that Python ignores.

    Python raises KeyboardInterrupt wherever the main thread is. In a destructor, such as that of a transaction, it only
    reports and ignores it: without this, one ^C in some hundred would not end a command that waits.
    """
    sys.unraisablehook = _repeat


def _repeat(ignored: Any) -> None:
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    # Later: here it would be ignored again. As a signal: it also ends a system call that waits.
    main = threading.main_thread().ident
    timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()
