"""Reading of many rows of a store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from cq.keys import after
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.transact import transact

_PAGE: Final = 20_000


def read_rows(db: Database, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a range, read in several transactions: a single one could exceed the time limit of the store."""
    while page := transact(db, partial(_read_page, begin=begin, end=end)):
        yield from page
        begin = after(page[-1][0])


def _read_page(tr: Transaction, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    rows: Any = tr.snapshot.get_range(begin, end, limit=_PAGE, streaming_mode=WANT_ALL)
    return [(row.key, row.value) for row in rows]
