"""Reads of single keys, executed together by one statement.

A statement costs as much as several rows. So a read is only queued when it is issued. All queued reads are executed
when the caller waits for the first of them, as on a cluster reads in flight return together. The delay does not change
the results: all reads see their snapshot.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from cq.store.embedded.binding.error import FDBError
from cq.store.embedded.binding.future import Value

MAX_READS: Final = 1024
"""The number of reads in one statement, and in the queue."""

_GET: Final = "SELECT k, v FROM kv WHERE k = ?"
_GET_MANY: Final = {
    size: "SELECT k, v FROM kv WHERE k IN (?" + ", ?" * (size - 1) + ")" for size in (16, 128, MAX_READS)
}


class PointRead(Value):
    """A value to read from a snapshot. Any use of the future executes all queued reads."""

    __slots__ = ("_key", "_run_reads")

    def __init__(self, key: bytes, run_reads: Callable[[], object]) -> None:
        # Without `super().__init__()`, which creates a lock: no caller ever blocks on this future.
        self._done, self._result, self._error, self._cancellation = False, None, None, None
        self._key, self._run_reads = key, run_reads

    def is_ready(self) -> bool:
        self.block_until_ready()
        return True

    def block_until_ready(self) -> None:
        cancellation = self._cancellation
        if cancellation is not None:  # as `_take` does, but inline: this path is hot
            if cancellation.error is None:
                self._cancellation = None
            else:
                self._take()
        if not self._done:
            self._run_reads()

    def on_ready(self, callback: Callable[[Value], None]) -> None:
        self.block_until_ready()
        self._call(callback)

    def settle(self, result: bytes | None = None, error: BaseException | None = None) -> bool:
        """Make the future ready without a read; return False if it was ready before."""
        if self._done:
            return False
        self._result, self._error, self._done = result, error, True
        return True


def run(connection: sqlite3.Connection, reads: Sequence[PointRead]) -> None:
    """Execute at most `MAX_READS` reads with one statement; raises `sqlite3.Error`, and `TypeError` for a bad value."""
    found: dict[bytes, bytes] = dict(_rows(connection, [read._key for read in reads]))
    if not {bytes}.issuperset(map(type, found.values())):
        raise TypeError
    for read in reads:
        read._result = found.get(read._key)
        read._done = True


def fail(reads: Sequence[PointRead], error: FDBError) -> None:
    """Make reads ready with an error."""
    for read in reads:
        read._error = error
        read._done = True


def _rows(connection: sqlite3.Connection, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(keys) == 1:
        return connection.execute(_GET, keys).fetchall()
    size = next(size for size in _GET_MANY if size >= len(keys))
    # Padding by repeating a key, which changes no result, keeps the number of prepared statements small.
    return connection.execute(_GET_MANY[size], keys + keys[-1:] * (size - len(keys))).fetchall()
