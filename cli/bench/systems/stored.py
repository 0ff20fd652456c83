"""Counts in the store of cq without a queue: read-modify-write, and the atomic addition of FoundationDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import cq
from cq import keys
from cq.cli.bench.systems.system import Drainer
from cq.store import close
from cq.store.api import WANT_ALL, Transaction
from cq.store.transact import transact

_PREFIX: Final = b"cq bench/"  # outside of the keys of queues
_BYTES: Final = 8
_PAGE: Final = 20_000


@dataclass(frozen=True)
class _StoredCounts:
    """Counts as 64-bit numbers under their words.

    Args:
        url: URL of the store.
        store: kind of the store.
    """

    url: str
    store: str
    name: ClassVar[str]
    defers: ClassVar[bool] = False

    def prepare(self) -> None:
        """Do nothing: keys need no preparation."""

    def drainer(self, place: int, of: int) -> Drainer:
        raise NotImplementedError

    def settle(self) -> None:
        """Do nothing: there is no work after a measurement."""

    def total(self) -> int:
        return sum(self._counts(opened(self.url)))

    def remove(self) -> None:
        transact(opened(self.url), lambda tr: tr.clear_range(self._prefix, keys.prefix_end(self._prefix)))

    @property
    def _prefix(self) -> bytes:
        return _PREFIX + self.name.encode() + b"/"

    def _counts(self, db: Any) -> Iterator[int]:
        """All counts, read in several transactions: a single one could exceed the time limit of the store."""
        begin, end = self._prefix, keys.prefix_end(self._prefix)
        while page := transact(db, partial(_read_page, begin=begin, end=end)):
            yield from (int.from_bytes(value, "little", signed=True) for _, value in page)
            begin = keys.after(page[-1][0])


class ReadModifyWrite(_StoredCounts):
    """Counts by reading all counts of a transaction at once, and writing the sums."""

    name = "read-modify-write"

    def adder(self) -> StoredAdder:
        return StoredAdder(self.url, self._add)

    def _add(self, tr: Transaction, updates: Mapping[str, Any]) -> None:
        # All reads are started before the first one is awaited.
        counts = {key: tr.get(key) for key in (self._prefix + word.encode() for word in updates)}
        for (key, count), update in zip(counts.items(), updates.values(), strict=True):
            number = int.from_bytes(count.value or b"", "little", signed=True) + update
            tr.set(key, number.to_bytes(_BYTES, "little", signed=True))


class AtomicAdd(_StoredCounts):
    """Counts by atomic additions without reads."""

    name = "atomic-add"

    def adder(self) -> StoredAdder:
        return StoredAdder(self.url, self._add)

    def _add(self, tr: Transaction, updates: Mapping[str, Any]) -> None:
        for word, update in updates.items():
            tr.add(self._prefix + word.encode(), update.to_bytes(_BYTES, "little", signed=True))


class StoredAdder:
    """Adds by a function that runs in a transaction."""

    def __init__(self, url: str, function: Callable[[Transaction, Mapping[str, Any]], None]) -> None:
        self._db, self._function = opened(url), function

    def add(self, updates: Mapping[str, Any]) -> None:
        transact(self._db, lambda tr: self._function(tr, updates))

    def close(self) -> None:
        """Do nothing: the adders of a process share its database."""


_opened: Final[dict[str, Any]] = {}


def opened(url: str) -> Any:
    """The database of this process for the URL: its threads share it, so that their commits are grouped."""
    if url not in _opened:
        _opened[url] = cq.open(url)
    return _opened[url]


def close_opened() -> None:
    """Close the stores that this process opened with `opened`."""
    while _opened:
        _, db = _opened.popitem()
        close(db)


def _read_page(tr: Transaction, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    rows = tr.snapshot.get_range(begin, end, limit=_PAGE, streaming_mode=WANT_ALL)
    return [(row.key, row.value) for row in rows]
