"""Reading many values without reading too much: bounded in number and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from cq import codec
from cq.config import QueueConfig
from cq.keys import QueueKeys, after, place
from cq.store.api import WANT_ALL, Transaction, Value

_FIRST_WINDOW: Final = 128
_LAST_WINDOW: Final = 1024


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
