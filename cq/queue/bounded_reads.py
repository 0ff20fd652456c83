"""Reading many values without reading too much: bounded in number and bytes, and by ranges where that is cheaper."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.keys import QueueKeys, after, place, places
from cq.store.api import WANT_ALL, Transaction, TransactionRead, Value
from cq.store.write_sizes import clear_bytes

_FIRST_WINDOW: Final = 128
_LAST_WINDOW: Final = 1024
_MANY: Final = 256  # keys for which reading a range is tried
_KEY_SHARE: Final = 8  # bytes of keys that a range read may pass over, for each byte of values
_DENSE: Final = 5  # rows for each key wanted, up to which a range is cheaper than single reads


def read_at_hashes(
    snapshot: TransactionRead,
    at: Callable[[bytes], bytes],
    keys: Sequence[bytes],
    known: Mapping[bytes, bytes | None],
    limit_bytes: int,
) -> dict[bytes, bytes | None]:
    """What is stored for these encoded keys, known already or read; without those beyond the limit, in order.

    `at` gives the key in the store of a place, which is a prefix and that place. Of what is not known, `limit_bytes` of
    values are read, about, and at least one.
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
    """What is stored under these keys, None for nothing; without those beyond the limit, in order.

    `limit_bytes` of values are read, about, and at least one. Many keys that lie close together are read as a range: in
    both stores a row of a range costs a fraction of a read of its own.
    """
    found = _read_by_ranges(snapshot, sorted(keys), limit_bytes) if len(keys) >= _MANY else {}
    if len(found) < len(keys):
        left = [key for key in keys if key not in found] if found else keys
        found.update(read_bounded(snapshot.get, left, limit_bytes))
    return found


def prefix_read(keys: list[bytes], found: Mapping[bytes, bytes | None]) -> list[bytes]:
    """The first of these keys, up to one that was not read."""
    if len(found) == len(keys):
        return keys
    return keys[: next(number for number, key in enumerate(keys) if key not in found)]


def _read_by_ranges(
    snapshot: TransactionRead, order: Sequence[bytes], limit_bytes: int
) -> dict[bytes, bytes | None]:
    """What is stored under the first of these keys, which are sorted, as long as they lie close together."""
    found: dict[bytes, bytes | None] = {}
    begin = size = keys_size = 0
    rows = _MANY
    last = after(order[-1])
    while begin < len(order):
        left = iter(snapshot.get_range(order[begin], last, limit=rows, streaming_mode=WANT_ALL))
        stored: dict[bytes, bytes] = {}
        while some := {row.key: row.value for row in islice(left, _FIRST_WINDOW)}:
            stored |= some
            size += sum(map(len, some.values()))
            keys_size += sum(map(len, some))
            if size > limit_bytes or keys_size > _KEY_SHARE * limit_bytes:
                return found
        end = len(order)
        if len(stored) == rows:
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
    """The next values of a bucket after a place, as [(encoded key, value)], and how far that is; None for the end.

    At least one is read. `limit_bytes` is what clearing these keys and writing their values elsewhere costs, about.
    """
    queue = QueueKeys(config.name)
    begin, end = queue.values_of_bucket(config.buckets, bucket)
    begin = max(begin, after(queue.value_at(before)))
    values: list[tuple[bytes, Any]] = []
    size = 0
    for row in tr.snapshot.get_range(begin, end, limit=limit, streaming_mode=WANT_ALL):
        encoded = queue.encoded_key(row.key)
        values.append((encoded, codec.decode(row.value)))
        size += clear_bytes(row.key) + len(row.value)
        if len(values) == limit or size > limit_bytes:
            return values, place(encoded)
    return values, None
