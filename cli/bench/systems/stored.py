"""Counts in the store of cq without a queue: read-modify-write, and the atomic addition of FoundationDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import cq
from cq import keys
from cq.cli.bench.systems.system import Add, System
from cq.store import close
from cq.store.api import Transaction
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

_PREFIX: Final = b"cq bench/"  # outside of the keys of queues
_COUNT: Final = Struct("<q")


@dataclass(frozen=True)
class StoredCounts(System):
    """Counts as 64-bit numbers under their words.

    Args:
        name: one of `ADDITIONS`.
        url: URL of the store.
        store: kind of the store.
    """

    name: str
    url: str
    store: str

    def adder(self, stack: ExitStack) -> Add:
        db = opened(self.url)  # not closed here: the adders of a process share it
        prefix, add = self._prefix, ADDITIONS[self.name]
        return lambda updates: transact(
            db, lambda tr: add(tr, {prefix + word.encode(): update for word, update in updates.items()})
        )

    def sums(self) -> Mapping[str, int]:
        rows = scan_rows(opened(self.url), self._prefix, keys.prefix_end(self._prefix))
        return {"the store": sum(_COUNT.unpack(value)[0] for _, value in rows)}

    def remove(self) -> None:
        transact(opened(self.url), lambda tr: tr.clear_range(self._prefix, keys.prefix_end(self._prefix)))

    @property
    def _prefix(self) -> bytes:
        return _PREFIX + self.name.encode() + b"/"


def _read_modify_write(tr: Transaction, updates: Mapping[bytes, int]) -> None:
    # All reads are started before the first one is awaited.
    counts = [tr.get(key) for key in updates]
    for (key, update), count in zip(updates.items(), counts, strict=True):
        tr.set(key, _COUNT.pack(_COUNT.unpack(count.value or bytes(8))[0] + update))


def _atomic_add(tr: Transaction, updates: Mapping[bytes, int]) -> None:
    for key, update in updates.items():
        tr.add(key, _COUNT.pack(update))


ADDITIONS: Final[Mapping[str, Callable[[Transaction, Mapping[bytes, int]], None]]] = {
    "read-modify-write": _read_modify_write,
    "atomic-add": _atomic_add,
}
"""{name of a system: how it adds the updates of a transaction to the counts under their keys}."""


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
