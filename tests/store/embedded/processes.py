"""Other processes on a store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def another_process(code: str, *arguments: object) -> Iterator[int]:
    """A process from its first line of output on, until it may end, which its standard input says; its number."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.communicate(timeout=120)
