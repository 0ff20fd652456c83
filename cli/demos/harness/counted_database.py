"""A database that counts the writes of transactions, also of processes that are killed and started again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final, NamedTuple

_WRITES: Final = frozenset(
    (
        "set",
        "clear",
        "clear_range",
        "add",
        "compare_and_clear",
        "set_versionstamped_key",
        "set_versionstamped_value",
    )
)


class WriteCounts(NamedTuple):
    """Numbers of writes.

    Attributes:
        transactions: transactions with writes, committed or not.
        operations: writes in them: keys set, changed atomically or cleared, and ranges cleared.
    """

    transactions: int
    operations: int

    @classmethod
    def total(cls, counts: Iterable[WriteCounts]) -> WriteCounts:
        """The sum of several counts."""
        return cls(*map(sum, zip(*counts, strict=True)))


class Meter:
    """Counts the writes of one role, in memory that its processes share with their parent.

    It has no lock: a killed process would never release it. Only one process of a role lives at a time.
    """

    def __init__(self) -> None:
        self._counts = multiprocessing.get_context("spawn").RawArray("Q", 2)

    def read(self) -> WriteCounts:
        """The number of writes until now."""
        return WriteCounts(*self._counts)

    def count(self, operations: int) -> None:
        """Count a transaction; callers in several threads must hold a lock."""
        self._counts[0] += 1
        self._counts[1] += operations


class CountedDatabase:
    """A database whose writes are counted.

    Args:
        db: a database of either store.
        meter: counts the writes.
    """

    def __init__(self, db: Any, meter: Meter) -> None:
        self.db = db
        self.meter = meter
        self.lock = Lock()

    @property
    def options(self) -> Any:
        """The options of the database."""
        return self.db.options

    def create_transaction(self) -> Any:
        """A transaction whose writes are counted when it is committed."""
        return _CountedTransaction(self, self.db.create_transaction())


class _CountedTransaction:
    """A transaction that counts its writes."""

    def __init__(self, owner: CountedDatabase, tr: Any) -> None:
        self._owner = owner
        self._tr = tr
        self._operations = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tr, name)
        if name in _WRITES:
            self._operations += 1  # a caller gets such a method to call it once
        return found

    def commit(self) -> Any:
        operations, self._operations = self._operations, 0
        if operations:  # before the commit: a process that is killed during it has written, too
            with self._owner.lock:
                self._owner.meter.count(operations)
        return self._tr.commit()

    def on_error(self, error: Any) -> Any:
        self._operations = 0  # the next try writes them again
        return self._tr.on_error(error)
