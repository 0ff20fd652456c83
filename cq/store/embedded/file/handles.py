"""The store files that this process has open.

SQLite's locks belong to the process and the file, not to a descriptor. This has two consequences. Closing any
descriptor of the file releases all locks, so code outside SQLite must not open a file in use. And a forked child
inherits SQLite's record of locks that only the parent holds, so the child must not open such a file at all.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from typing import Protocol

FileId = tuple[int, int]
"""Device and inode number: the identity of a file, independent of its name."""

FORKED = (
    "the store was open when this process was forked: start processes with spawn, or open it after the fork"
)


class Holder(Protocol):
    """An object that has a store open."""

    def abandon(self) -> None:
        """In a forked child: never touch the file again."""


lock = threading.RLock()
"""Held while a store is opened. Reentrant: the garbage collector may close another store in the same thread."""

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
    """Record that a store is open."""
    _open[file] += 1
    _holders.add(holder)


def release(file: FileId) -> None:
    """Record that a store is closed."""
    with lock:
        _open[file] -= 1


def _after_fork() -> None:
    global lock  # noqa: PLW0603 - a thread that does not exist in the child may have held it
    lock = threading.RLock()
    _before_fork.update(+_open)
    for holder in list(_holders):
        holder.abandon()


os.register_at_fork(after_in_child=_after_fork)
