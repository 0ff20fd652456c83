"""^C: an interrupt that Python would ignore is repeated."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.02


def repeat_ignored() -> None:
    """From now on, repeat each interrupt that Python ignores.

    Python raises KeyboardInterrupt wherever the main thread is. In a destructor, such as that of a transaction, it only
    reports and ignores it: without this, one ^C in some hundred would not end a command that waits.
    """
    sys.unraisablehook = _report


def _report(ignored: Any) -> None:
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    # Later: here it would be ignored again. As a signal: it also ends a system call that waits.
    main = threading.main_thread().ident
    timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main, signal.SIGINT))
    timer.daemon = True
    timer.start()
