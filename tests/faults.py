"""A database whose transactions fail as a cluster's can: conflicts, lost commits, expired reads, from one seed."""

from __future__ import annotations

import random
import threading
from typing import Any

from cq.store.embedded import FDBError


class FaultyDatabase:
    """Wraps a database; its transactions' reads and commits fail at random.

    `unknown` commits end with 1021, one half of them having committed. Thread-safe.
    """

    def __init__(
        self, db: Any, seed: int, *, conflict: float = 0.1, unknown: float = 0.1, too_old: float = 0.02
    ) -> None:
        self.db = db
        self.random = random.Random(seed)
        self.conflict, self.unknown, self.too_old = conflict, unknown, too_old
        self.lock = threading.Lock()
        self.injected: dict[str, int] = {}

    @property
    def options(self) -> Any:
        return self.db.options

    def create_transaction(self) -> Any:
        return FaultyTransaction(self, self.db.create_transaction())

    def draw(self) -> float:
        """A number of the seed's sequence."""
        with self.lock:
            return self.random.random()

    def count(self, what: str) -> None:
        """Note an injected fault."""
        with self.lock:
            self.injected[what] = self.injected.get(what, 0) + 1


class FaultyTransaction:
    """Passes everything on but for the faults."""

    def __init__(self, db: FaultyDatabase, tr: Any) -> None:
        self._faults = db
        self._tr = tr

    @property
    def db(self) -> Any:
        return self._tr.db

    def __getattr__(self, what: str) -> Any:
        return getattr(self._tr, what)

    def get(self, key: bytes) -> Any:
        if self._faults.draw() < self._faults.too_old:
            self._faults.count("too old")
            return Failed(FDBError(1007))
        return self._tr.get(key)

    def commit(self) -> Any:
        drawn = self._faults.draw()
        if drawn < self._faults.conflict:
            self._faults.count("conflict")
            return Failed(FDBError(1020))
        if drawn < self._faults.conflict + self._faults.unknown:
            if self._faults.draw() < 0.5:
                self._tr.commit().wait()
                self._faults.count("unknown, committed")
            else:
                self._faults.count("unknown, not committed")
            return Failed(FDBError(1021))
        return self._tr.commit()

    def on_error(self, error: Any) -> Any:
        return self._tr.on_error(error)


class Failed:
    """A future that has failed."""

    def __init__(self, error: FDBError) -> None:
        self._error = error

    def wait(self) -> Any:
        raise self._error

    @property
    def value(self) -> Any:
        raise self._error

    def present(self) -> bool:
        raise self._error
