"""Running out of file descriptors: SQLite reports it as a file that cannot be opened, as for a fault of the disk."""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

_SPARE: Final = 8
"""Number of descriptors that opening a store may take: a failed try has closed some of its own before the report."""


def shortage(error: Exception | None = None) -> str:
    """The shortage and its remedy, if an error of the system is one, or else if few descriptors are left; else ""."""
    number = error.errno if isinstance(error, OSError) else _probe()
    if number == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"nearly all {limit:,} file descriptors of this process are in use: raise `ulimit -n`, or close files"
    return "the system has too many files open: end some processes" if number == errno.ENFILE else ""


def _probe() -> int | None:
    """The number of the error of opening some files."""
    held: list[int] = []
    try:
        for _ in range(_SPARE):
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - it may raise
    except OSError as error:
        return error.errno
    finally:
        for descriptor in held:
            os.close(descriptor)
    return None
