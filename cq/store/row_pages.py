"""Reading of many rows of a store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from cq.keys import after
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.transact import transact

PAGE: Final = 1_000


def scan_rows(db: Database, begin: bytes, end: bytes, limit: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a range, `limit` in each transaction: a single one could exceed the time limit of the store."""
    page: list[tuple[bytes, bytes]] | None = None
    while page is None or len(page) == limit:
        page = transact(db, partial(_page, begin=begin, end=end, limit=limit))
        yield from page
        begin = after(page[-1][0]) if page else end


def _page(tr: Transaction, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    rows: Any = tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL)
    return [(row.key, row.value) for row in rows]
