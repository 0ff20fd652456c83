"""Reading of many rows of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from cq import keys
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.transact import transact

PAGE: Final = 1_000

T = TypeVar("T")


def pages(
    db: Database, read: Callable[[Transaction, bytes | None], tuple[list[T], bytes | None]]
) -> Iterator[list[T]]:
    """The items of page after page, each read in its own transaction: a single one could exceed the store's time limit.

    `read(tr, after)` returns the items of a page and its continuation, which is `after` of the next page; None: no page
    follows.
    """
    after: bytes | None = None
    while True:
        items, after = transact(db, _reader(read, after))
        yield items
        if after is None:
            return


def scan_rows(db: Database, begin: bytes, end: bytes, limit: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a range, `limit` in each transaction."""

    def read(tr: Transaction, after: bytes | None) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        rows = tr.snapshot.get_range(after or begin, end, limit=limit, streaming_mode=WANT_ALL)
        found = [(row.key, row.value) for row in rows]
        return found, keys.after(found[-1][0]) if len(found) == limit else None

    for page in pages(db, read):
        yield from page


def _reader(
    read: Callable[[Transaction, bytes | None], tuple[list[T], bytes | None]], after: bytes | None
) -> Callable[[Transaction], tuple[list[T], bytes | None]]:
    return lambda tr: read(tr, after)
