"""Reads of many values, bounded in number and bytes, as range reads where these are cheaper; and of rows in pages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from cq.keys import after as after_key
from cq.keys import places
from cq.store.api import WANT_ALL, Database, Transaction, TransactionRead, Value, is_local
from cq.store.transact import transact

_FIRST_WINDOW: Final = 128
_LAST_WINDOW: Final = 1024
_MANY: Final = 256  # minimum number of keys for a range read
_KEY_SHARE: Final = 8  # maximum bytes of keys in a range read, for each byte of values allowed
# Maximum rows read for each wanted key; with more, single reads are cheaper than a range read.
_DENSE: Final = 5
PAGE: Final = 1_000
_AT_ONCE: Final = 100  # names in a transaction of `read_each`

T = TypeVar("T")


def read_at_hashes(
    snapshot: TransactionRead,
    at: Callable[[bytes], bytes],
    keys: Sequence[bytes],
    known: Mapping[bytes, bytes | None],
    limit_bytes: int,
) -> dict[bytes, bytes | None]:
    """{encoded key: stored bytes or None} of these keys, known or read; keys beyond the limit are missing.

    `at` returns the store's key of a place: a prefix followed by the place (hash and encoded key). Of the other keys,
    about `limit_bytes` of values are read, in order, and at least one.
    """
    found = {key: known[key] for key in keys if key in known} if known else {}
    missing = [key for key in keys if key not in found] if found else keys
    order = list(map(at(b"").__add__, places(missing)))
    stored = read_stored(snapshot, order, limit_bytes)
    found.update((key, stored[where]) for key, where in zip(missing, order, strict=True) if where in stored)
    return found


def read_stored(
    snapshot: TransactionRead, keys: Sequence[bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """{key: stored bytes or None} of these keys; keys beyond the limit are missing.

    Reads about `limit_bytes` of values, in order, and at least one. Many neighbouring keys are read as a range: in both
    stores a row of a range costs a fraction of a single read.
    """
    found = _read_by_ranges(snapshot, sorted(keys), limit_bytes) if len(keys) >= _MANY else {}
    if len(found) < len(keys):
        left = [key for key in keys if key not in found] if found else keys
        found.update(read_bounded(snapshot.get, left, limit_bytes))
    return found


def prefix_read(keys: list[bytes], found: Mapping[bytes, bytes | None]) -> list[bytes]:
    """The keys before the first unread one."""
    if len(found) == len(keys):
        return keys
    return keys[: next(number for number, key in enumerate(keys) if key not in found)]


def _read_by_ranges(
    snapshot: TransactionRead, order: Sequence[bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """{key: stored bytes or None} of the first of these sorted keys, until few rows of a range are wanted ones."""
    found: dict[bytes, bytes | None] = {}
    begin = size = keys_size = 0
    rows = _MANY
    last = after_key(order[-1])
    while begin < len(order):
        left = iter(snapshot.get_range(order[begin], last, limit=rows, streaming_mode=WANT_ALL))
        stored: dict[bytes, bytes] = {}
        while some := {row.key: row.value for row in islice(left, _FIRST_WINDOW)}:
            stored |= some
            size += sum(map(len, some.values()))
            keys_size += sum(map(len, some))
            # Rows of this range are dropped: the caller reads these keys singly, and so keeps to its limit.
            if size > limit_bytes or keys_size > _KEY_SHARE * limit_bytes:
                return found
        end = len(order)
        if len(stored) == rows:  # the range read stopped at its row limit: later keys are not read yet
            end = bisect_right(order, next(reversed(stored)), begin)
        part = order[begin:end]
        found.update(zip(part, map(stored.get, part), strict=True))
        if len(stored) > _DENSE * len(part):
            return found
        begin, rows = end, min(2 * rows, _LAST_WINDOW * _DENSE)
    return found


def read_bounded(
    get: Callable[[bytes], Value], keys: Sequence[bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """{key: stored bytes or None} of the first of these keys, in order, until `limit_bytes` of values are read.

    Starts all reads of a window before it waits for the first. Windows double, so that n keys cost about log n round
    trips and large values are noticed early. At least one key is read.
    """
    found: dict[bytes, bytes | None] = {}
    size = start = 0
    window = _FIRST_WINDOW
    while start < len(keys) and (size <= limit_bytes or not found):
        chunk = keys[start : start + window]
        for key, future in [(key, get(key)) for key in chunk]:
            if size > limit_bytes and found:
                break  # later reads of the window were already started; their results are dropped
            value = found[key] = future.value
            size += 0 if value is None else len(value)
        start += window
        window = min(2 * window, _LAST_WINDOW)
    return found


def pages(db: Database, read: Callable[..., tuple[list[T], bytes | None]]) -> Iterator[list[T]]:
    """The items of page after page, each read in its own transaction: a single one could exceed the store's time limit.

    `read(tr, after=...)` returns the items of a page and its continuation, which is `after` of the next page; None: no
    page follows.
    """
    after: bytes | None = None
    while True:
        items, after = transact(db, partial(read, after=after))
        yield items
        if after is None:
            return


def read_each(
    db: Database,
    names: Sequence[str],
    read: Callable[[Transaction, str], T],
    keys: Callable[[str], Iterable[bytes]] = lambda name: (),
) -> list[T]:
    """The results of `read(tr, name)` for each of the names, 100 in a transaction.

    Reads for thousands of queues, one after the other, take longer than a cluster lets a transaction live. `keys`
    returns keys that `read` reads by snapshot reads: on a cluster they are requested together first, so that the client
    has them.
    """
    is_remote = not is_local(db)

    def read_some(tr: Transaction, some: Sequence[str]) -> list[T]:
        if is_remote:
            for value in [tr.snapshot.get(key) for name in some for key in keys(name)]:
                value.wait()
        return [read(tr, name) for name in some]

    parts = [names[at : at + _AT_ONCE] for at in range(0, len(names), _AT_ONCE)]
    return [found for part in parts for found in transact(db, partial(read_some, some=part))]


def scan_rows(db: Database, begin: bytes, end: bytes, limit: int = PAGE) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a range, `limit` in each transaction."""

    def read(tr: Transaction, after: bytes | None) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        rows = tr.snapshot.get_range(after or begin, end, limit=limit, streaming_mode=WANT_ALL)
        found = [(row.key, row.value) for row in rows]
        return found, after_key(found[-1][0]) if len(found) == limit else None

    for page in pages(db, read):
        yield from page
