"""Reading of many rows of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

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
    """The rows of a range, `limit` in each transaction: a single one could exceed the time limit of the store."""
    page: list[tuple[bytes, bytes]] | None = None
    while page is None or len(page) == limit:
        page = transact(db, partial(_page, begin=begin, end=end, limit=limit))
        yield from page
        begin = keys.after(page[-1][0]) if page else end


def _reader(
    read: Callable[[Transaction, bytes | None], tuple[list[T], bytes | None]], after: bytes | None
) -> Callable[[Transaction], tuple[list[T], bytes | None]]:
    return lambda tr: read(tr, after)


def _page(tr: Transaction, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    rows: Any = tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)
    return [(row.key, row.value) for row in rows]
