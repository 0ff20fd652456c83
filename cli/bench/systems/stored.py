"""Counts in the store of cq without a queue: read-modify-write, and the atomic addition of FoundationDB."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import cq
from cq import keys
from cq.cli.bench.systems.system import Add, System
from cq.store import close
from cq.store.api import Transaction
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

_PREFIX: Final = b"cq bench/"  # outside of the keys of queues
_BYTES: Final = 8


@dataclass(frozen=True)
class _StoredCounts(System):
    """Counts as 64-bit numbers under their words.

    Args:
        url: URL of the store.
        store: kind of the store.
    """

    url: str
    store: str

    def adder(self, stack: ExitStack) -> Add:
        db = opened(self.url)  # not closed here: the adders of a process share it
        return lambda updates: transact(db, partial(self._add, updates=updates))

    def _add(self, tr: Transaction, updates: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def total(self) -> int:
        rows = scan_rows(opened(self.url), self._prefix, keys.prefix_end(self._prefix))
        return sum(int.from_bytes(value, "little", signed=True) for _, value in rows)

    def remove(self) -> None:
        transact(opened(self.url), lambda tr: tr.clear_range(self._prefix, keys.prefix_end(self._prefix)))

    @property
    def _prefix(self) -> bytes:
        return _PREFIX + self.name.encode() + b"/"


class ReadModifyWrite(_StoredCounts):
    """Counts by reading all counts of a transaction at once, and writing the sums."""

    name = "read-modify-write"

    def _add(self, tr: Transaction, updates: Mapping[str, Any]) -> None:
        # All reads are started before the first one is awaited.
        counts = {key: tr.get(key) for key in (self._prefix + word.encode() for word in updates)}
        for (key, count), update in zip(counts.items(), updates.values(), strict=True):
            number = int.from_bytes(count.value or b"", "little", signed=True) + update
            tr.set(key, number.to_bytes(_BYTES, "little", signed=True))


class AtomicAdd(_StoredCounts):
    """Counts by atomic additions without reads."""

    name = "atomic-add"

    def _add(self, tr: Transaction, updates: Mapping[str, Any]) -> None:
        for word, update in updates.items():
            tr.add(self._prefix + word.encode(), update.to_bytes(_BYTES, "little", signed=True))


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
