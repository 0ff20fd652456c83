"""Applying the writes of a group of transactions to the table.

Values are collected in memory and then written in key order, which is faster than in the order of the transactions. A
range clear changes the table at once, so it first drops the collected values in its range.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import apsw

from cq.store.embedded.binding.atomic import (
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    apply,
    stamp,
    stamp_at,
)
from cq.store.embedded.binding.error import not_bytes
from cq.store.embedded.writes.changes import CLEAR_RANGE, CommitChanges, Mutation, StampedKey

_FEW = 64
_GET = "SELECT v FROM kv WHERE k = ?"
_PUT = "INSERT OR REPLACE INTO kv VALUES (?, ?)"
_MANY = 256
_PUT_MANY = _PUT + ", (?, ?)" * (_MANY - 1)  # half of the time for each row, of a pass about 3 %
_DELETE = "DELETE FROM kv WHERE k = ?"
_DELETE_RANGE = "DELETE FROM kv WHERE k >= ? AND k < ?"


class Applier:
    """Collects the values of one group, and writes them into the table."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._values: dict[bytes, bytes | None] = {}

    def apply(self, changes: CommitChanges, versionstamp: bytes) -> list[bytes]:
        """Apply one transaction; return its versionstamped keys."""
        stamped = self._mutate(changes.before_values(), versionstamp)
        values = self._values
        values.update(changes.values)
        stamped += self._mutate(changes.after_values(), versionstamp)
        for write in changes.stamped:
            if isinstance(write, StampedKey):
                key = stamp_at(write.param, write.start, versionstamp)
                values[key] = write.value
                stamped.append(key)
            else:
                values[write.key] = stamp_at(write.param, write.start, versionstamp)
        return stamped

    def flush(self) -> None:
        """Write the collected values."""
        values, self._values = self._values, {}
        if None in values.values():
            gone = [(key,) for key, value in values.items() if value is None]
            self._connection.executemany(_DELETE, sorted(gone))
            values = {key: value for key, value in values.items() if value is not None}
        rows = sorted(values.items())
        whole = len(rows) // _MANY * _MANY
        for start in range(0, whole, _MANY):
            self._connection.execute(_PUT_MANY, list(chain.from_iterable(rows[start : start + _MANY])))
        self._connection.executemany(_PUT, rows[whole:])

    def _mutate(self, mutations: Iterable[Mutation], versionstamp: bytes) -> list[bytes]:
        values = self._values
        stamped = []
        for operation, key, operand in mutations:
            if operation == SET:
                values[key] = operand
            elif operation == CLEAR_RANGE:
                self._clear(key, operand or b"")
                values = self._values
            elif operation == SET_VERSIONSTAMPED_KEY:
                stamped.append(stamp(key, versionstamp))
                values[stamped[-1]] = operand
            elif operation == SET_VERSIONSTAMPED_VALUE:
                values[key] = stamp(operand or b"", versionstamp)
            else:
                values[key] = apply(operation, self._current(key), operand)
        return stamped

    def _current(self, key: bytes) -> bytes | None:
        if key in self._values:
            return self._values[key]
        row = self._connection.execute(_GET, (key,)).fetchone()
        if row is None:
            return None
        if type(row[0]) is not bytes:
            raise not_bytes()
        return row[0]

    def _clear(self, begin: bytes, end: bytes) -> None:
        if len(self._values) > _FEW:
            self.flush()
        else:
            for key in [key for key in self._values if begin <= key < end]:
                del self._values[key]
        self._connection.execute(_DELETE_RANGE, (begin, end))
