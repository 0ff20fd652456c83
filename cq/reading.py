"""Reading many keys at once without reading too much: futures in windows, bounded by bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cq.store.api import Value

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
