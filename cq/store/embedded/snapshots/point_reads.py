"""Reads of single keys, which one statement answers together.

A statement costs as much as several rows. So a read is only noted when it is issued, and all that have been noted are
answered when the first of them is waited for, as reads that are in flight together come back together from a cluster.
It makes no difference to what they find: that is what their snapshot shows, whenever they are answered.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from cq.store.embedded.binding.error import FDBError
from cq.store.embedded.binding.future import Value

MAX_READS: Final = 1024
"""So many reads are answered at once; no more are noted."""

_GET: Final = "SELECT k, v FROM kv WHERE k = ?"
_GET_MANY: Final = {
    size: "SELECT k, v FROM kv WHERE k IN (?" + ", ?" * (size - 1) + ")" for size in (16, 128, MAX_READS)
}


class PointRead(Value):
    """A value that a snapshot was asked for: ready as soon as anybody looks."""

    __slots__ = ("_key", "_run_reads")

    def __init__(self, key: bytes, answer: Callable[[], object]) -> None:
        # Nobody waits at a gate: whoever looks has `answer` answer all reads.
        self._done, self._result, self._error, self._flight = False, None, None, None
        self._key, self._run_reads = key, answer

    def is_ready(self) -> bool:
        self.block_until_ready()
        return True

    def block_until_ready(self) -> None:
        flight = self._flight
        if flight is not None:  # `_land`, without a call for each read
            self._flight = None
            if flight.error is not None:
                self.settle(error=FDBError(flight.error))
        if not self._done:
            self._run_reads()

    def on_ready(self, callback: Callable[[Value], None]) -> None:
        self.block_until_ready()
        self._call(callback)

    def settle(self, result: bytes | None = None, error: BaseException | None = None) -> bool:
        """Make it ready without a question; `answer` may do so, too, and leaves the error."""
        was_ready = self._done
        self._result, self._error, self._done = result, error, True
        return not was_ready

    def cancel(self) -> None:
        """Does nothing: a file has answered before it can be told not to."""


def run(connection: sqlite3.Connection, reads: Sequence[PointRead]) -> None:
    """Execute at most `MAX_READS` reads with one statement; raises `sqlite3.Error`, and `TypeError` for a bad value."""
    found: dict[bytes, bytes] = dict(_rows(connection, [read._key for read in reads]))
    if not {bytes}.issuperset(map(type, found.values())):
        raise TypeError
    for read in reads:
        read._result = found.get(read._key)
        read._done = True


def fail(reads: Sequence[PointRead], error: FDBError) -> None:
    """Make reads ready that could not be answered."""
    for read in reads:
        read._error = error
        read._done = True


def _rows(connection: sqlite3.Connection, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(keys) == 1:
        return connection.execute(_GET, keys).fetchall()
    size = next(size for size in _GET_MANY if size >= len(keys))
    # What is asked for twice is found once, so there are few statements, and all of them stay prepared.
    return connection.execute(_GET_MANY[size], keys + keys[-1:] * (size - len(keys))).fetchall()
