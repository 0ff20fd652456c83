"""A database that counts the round trips of its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cq.store.api import METADATA_VERSION
from tests.kit.faults import Passing, WrappedDatabase

VERSION, COMMIT = ["get_read_version"], ["commit"]


class TripsDatabase(WrappedDatabase):
    """A database that lists the round trips of its transactions.

    Attributes:
        trips: the replies that each round trip has brought, by the methods of their requests, sorted.
    """

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self._replies: list[tuple[int, str]] = []
        self.now = 0

    def create_transaction(self) -> Any:
        tr = TripsReads(self, self.inner.create_transaction())
        tr.__dict__["snapshot"] = snapshot = TripsReads(self, tr.inner.snapshot)
        snapshot.__dict__["versions"] = tr.versions  # both read at one version
        return tr

    @property
    def trips(self) -> list[list[str]]:
        return [
            sorted(what for at, what in self._replies if at == number) for number in range(1, self.now + 1)
        ]

    def replied(self, what: str, sent: int) -> int:
        """Note a request; returns the number of the round trip that brings its reply."""
        self._replies.append((sent + 1, what))
        return sent + 1

    def wait(self, reply: int) -> None:
        self.now = max(self.now, reply)


class TripsReads(Passing):
    """A transaction or its snapshot, whose requests are counted."""

    def __init__(self, db: TripsDatabase, inner: Any) -> None:
        super().__init__(inner)
        self.trips_db = db
        self.versions: list[int] = []  # the round trip that brings the read version, once it is requested

    def _version(self) -> int:
        if not self.versions:
            self.versions.append(self.trips_db.replied("get_read_version", self.trips_db.now))
        return self.versions[0]

    def _read(self, what: str, future: Any) -> Reply:
        return Reply(
            self.trips_db, future, self.trips_db.replied(what, max(self._version(), self.trips_db.now))
        )

    def set_read_version(self, version: int) -> None:
        self.inner.set_read_version(version)
        self.versions.append(self.trips_db.now)  # it is known without a request

    def get_read_version(self) -> Reply:
        return Reply(self.trips_db, self.inner.get_read_version(), self._version())

    def get(self, key: bytes) -> Reply:
        if key == METADATA_VERSION:
            return Reply(self.trips_db, self.inner.get(key), self._version())
        return self._read("get", self.inner.get(key))

    def get_range(self, *args: Any, **kwargs: Any) -> Reply:
        return self._read("get_range", self.inner.get_range(*args, **kwargs))

    def commit(self) -> Reply:
        return self._read("commit", self.inner.commit())


class Reply(Passing):
    """A future or a range; a caller that waits for it waits for its round trip."""

    def __init__(self, db: TripsDatabase, inner: Any, number: int) -> None:
        super().__init__(inner)
        self._db, self._number = db, number

    def wait(self) -> Any:
        self._db.wait(self._number)
        return self.inner.wait()

    @property
    def value(self) -> Any:
        self._db.wait(self._number)
        return self.inner.value

    def to_list(self) -> Any:
        self._db.wait(self._number)
        return self.inner.to_list()

    def __iter__(self) -> Iterator[Any]:
        self._db.wait(self._number)
        return iter(self.inner)
