"""Range results, read piece by piece, so that a range larger than memory can be iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from cq.store.embedded.binding.future import FutureRows
from cq.store.embedded.binding.keys import KeyValue, Row, after
from cq.store.embedded.writes.read_set import OffsetSelector, RangeRequest

WANT_ALL = -2
ITERATOR = -1
EXACT = 0
SMALL = 1
MEDIUM = 2
LARGE = 3
SERIAL = 4

_MODE_BYTES = {WANT_ALL: 80_000, SMALL: 256, MEDIUM: 1_000, LARGE: 4_096, SERIAL: 80_000}
_GROWTH = 1.5
_LARGEST = 120_000
_UNLIMITED = 1 << 40

# Converts a row without executing Python code.
_row = cast("Callable[[Row], KeyValue]", partial(tuple.__new__, KeyValue))


def piece_bytes(mode: int, iteration: int) -> int:
    """The approximate bytes of one piece. An iterator may be left early, so its first piece is small."""
    if mode == EXACT:
        return _UNLIMITED
    if mode == ITERATOR:
        return min(int(_MODE_BYTES[LARGE] * _GROWTH ** (iteration - 1)), _LARGEST)
    return _MODE_BYTES[mode]


class FDBRange:
    """Iterates over `KeyValue`s. All errors, including those of the first piece, are raised by the iteration."""

    __slots__ = ("_first", "_read", "_request")

    def __init__(self, read: Callable[[RangeRequest], FutureRows], request: RangeRequest) -> None:
        self._read = read
        self._request = request
        self._first = read(request)

    def to_list(self) -> list[KeyValue]:
        """All rows."""
        mode = self._request.mode
        if mode == ITERATOR:
            mode = EXACT if self._request.limit > 0 else WANT_ALL
        return list(self._iterate(mode))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._request.mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        request = self._request._replace(mode=mode)
        rows, more = self._first.get()
        while rows:
            yield from map(_row, rows)
            if not more or request.limit == len(rows):
                return
            request = _following(request, rows)
            rows, more = self._read(request).get()


def _following(request: RangeRequest, rows: list[Row]) -> RangeRequest:
    """The request for the next piece, after one that returned `rows`."""
    begin, end, limit, reverse, mode, iteration = request
    if reverse:
        end = OffsetSelector(rows[-1][0], 1)
    else:
        begin = OffsetSelector(after(rows[-1][0]), 1)
    return RangeRequest(begin, end, limit and limit - len(rows), reverse, mode, iteration + 1)
