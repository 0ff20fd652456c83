"""The files that this process has open as stores.

SQLite's locks belong to the process and the file, not to a descriptor, which has two consequences. Closing any
descriptor of the file drops all of them, so a file in use must not be looked at in any other way. And a forked child
inherits SQLite's belief to hold locks that only the parent holds, so a file that was open then must not be opened in
the child at all, not even anew.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from typing import Protocol

FileId = tuple[int, int]
"""Device and number of a file: what makes it the same, whatever its name."""

FORKED = (
    "the store was open when this process was forked: start processes with spawn, or open it only afterwards"
)


class Holder(Protocol):
    """Something that has a store open."""

    def abandon(self) -> None:
        """Never touch the file again: this is a forked child."""


lock = threading.RLock()
"""Held while a store is opened. Reentrant: the collector may close another one meanwhile."""

_open: Counter[FileId] = Counter()
_before_fork: set[FileId] = set()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


def in_use(file: FileId) -> bool:
    """Whether this process has the file open."""
    return _open[file] > 0


def forbidden(file: FileId) -> bool:
    """Whether the file was open when this process was forked."""
    return file in _before_fork


def acquire(file: FileId, holder: Holder) -> None:
    """Note that a store is open."""
    _open[file] += 1
    _holders.add(holder)


def release(file: FileId) -> None:
    """Note that it is closed."""
    with lock:
        _open[file] -= 1


def _after_fork() -> None:
    global lock  # noqa: PLW0603 - another thread may have held it
    lock = threading.RLock()
    _before_fork.update(+_open)
    for holder in list(_holders):
        holder.abandon()


os.register_at_fork(after_in_child=_after_fork)
