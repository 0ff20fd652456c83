"""Standard streams that are closed, full, or read by a program that has ended."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

_NAMES: Final = ("stdin", "stdout", "stderr")


def open_missing() -> None:
    """Give closed standard streams a file, so that files opened later do not get their numbers.

    Output to a closed standard output fails, as it must not be lost silently; that to a closed standard error is lost.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system takes the lowest free number, which is this one.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def flush() -> None:
    """Write what is buffered for standard output; raises `OSError`."""
    if sys.stdout is not None:
        sys.stdout.flush()


def discard() -> None:
    """Lose what is buffered for standard output after an error: Python would report the error again at its end."""
    for stream in (sys.stdout, sys.__stdout__):
        _discard(stream)


def _discard(stream: TextIO | None) -> None:
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
