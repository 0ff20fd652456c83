"""Handling of standard streams that are closed or full, or whose reader has ended."""

from __future__ import annotations

import os
import select
import sys
from typing import Final, TextIO

_NAMES: Final = ("stdin", "stdout", "stderr")


def open_missing() -> None:
    """Open a file for each closed standard stream: otherwise a file opened later gets its number.

    Output to a closed standard output fails, because losing it silently is an error. Output to a closed standard error
    is discarded.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system assigns the lowest free number: this one. A read-only file makes writes fail.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def flush() -> None:
    """Write the buffered data of standard output; raises `OSError`."""
    if sys.stdout is not None:
        sys.stdout.flush()


def has_lost_reader() -> bool:
    """Whether standard output is a pipe whose reader has ended, such as `head`."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):  # closed, or not a file
        return False


def discard() -> None:
    """Discard the buffered data of standard output after an error: Python would report the error again at exit."""
    for stream in (sys.stdout, sys.__stdout__):
        _discard(stream)


def _discard(stream: TextIO | None) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
