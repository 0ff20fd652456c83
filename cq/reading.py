"""Reading many values without reading too much: bounded in number and bytes, and by ranges where that is cheaper."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cq import codec
from cq.config import QueueConfig
from cq.keys import QueueKeys, after, place, places
from cq.store.api import WANT_ALL, Transaction, TransactionRead, Value

_FIRST_WINDOW: Final = 128
_LAST_WINDOW: Final = 1024
_MANY: Final = 256  # keys for which reading a range is tried
_DENSE: Final = 5  # rows for each key wanted, up to which a range is cheaper than single reads


def read_by_place(
    snapshot: TransactionRead,
    at: Callable[[bytes], bytes],
    keys: Sequence[bytes],
    known: Mapping[bytes, bytes | None],
    limit_bytes: int,
) -> dict[bytes, bytes | None]:
    """What is stored for these encoded keys, known already or read; without those beyond the limit, in order.

    `at` gives the key in the store of a place. Of what is not known, `limit_bytes` of values are read, about, and at
    least one. Many keys that lie close together are read as a range: in both stores a row of a range costs a
    fraction of a read of its own.
    """
    found = {key: known[key] for key in keys if key in known} if known else {}
    missing = [key for key in keys if key not in found] if found else keys
    stored = {at(where): key for where, key in zip(places(missing), missing, strict=True)}
    if len(stored) >= _MANY:
        found.update(_read_dense(snapshot, stored, limit_bytes))
        stored = {at: key for at, key in stored.items() if key not in found}
    values = read_bounded(snapshot.get, list(stored), limit_bytes)
    found.update((stored[at], value) for at, value in values.items())
    return found


def leading(keys: list[bytes], found: Mapping[bytes, bytes | None]) -> list[bytes]:
    """The first of these keys, up to one that was not read."""
    if len(found) == len(keys):
        return keys
    return keys[: next(number for number, key in enumerate(keys) if key not in found)]


def _read_dense(
    snapshot: TransactionRead, keys: Mapping[bytes, bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """What is stored for the first of these keys, given by where they are, as long as they lie close together."""
    found: dict[bytes, bytes | None] = {}
    order = sorted(keys)
    begin = size = 0
    rows = _MANY
    last = after(order[-1])
    while begin < len(order):
        stored: dict[bytes, bytes] = {}
        for row in snapshot.get_range(order[begin], last, limit=rows, streaming_mode=WANT_ALL):
            stored[row.key] = row.value
            size += len(row.value)
            if size > limit_bytes:
                return found
        end = len(order)
        if len(stored) == rows:
            end = bisect_right(order, next(reversed(stored)), begin)
        part = order[begin:end]
        found.update(zip([keys[where] for where in part], map(stored.get, part), strict=True))
        if len(stored) > _DENSE * (end - begin):
            return found
        begin, rows = end, min(2 * rows, _LAST_WINDOW * _DENSE)
    return found


def read_bounded(
    get: Callable[[bytes], Value], keys: Sequence[bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """The values of the first of these keys, in order, until `limit_bytes` of values have been read.

    All reads of a window are issued before the first is waited for; windows double, so that n keys cost about
    log n round trips and large values are noticed early. At least one key is read.
    """
    found: dict[bytes, bytes | None] = {}
    size = start = 0
    window = _FIRST_WINDOW
    while start < len(keys) and (size <= limit_bytes or not found):
        chunk = keys[start : start + window]
        for key, future in [(key, get(key)) for key in chunk]:
            if size > limit_bytes and found:
                break
            value = found[key] = future.value
            size += 0 if value is None else len(value)
        start += window
        window = min(2 * window, _LAST_WINDOW)
    return found


def read_values(
    tr: Transaction, config: QueueConfig, bucket: int, before: bytes, limit: int, limit_bytes: int
) -> tuple[list[tuple[bytes, Any]], bytes | None]:
    """The next values of a bucket behind a place, as [(encoded key, value)], and how far that is; None for the end."""
    queue = QueueKeys(config.name)
    begin, end = queue.values_of_bucket(config.buckets, bucket)
    begin = max(begin, after(queue.value_at(before)))
    values: list[tuple[bytes, Any]] = []
    size = 0
    for row in tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL):
        encoded = queue.encoded_key(row.key)
        values.append((encoded, codec.decode(row.value)))
        size += len(row.value)
        if len(values) == limit or size > limit_bytes:
            return values, place(encoded)
    return values, None
