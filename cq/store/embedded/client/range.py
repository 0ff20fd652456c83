"""Range results, read piece by piece, so that a range larger than memory can be iterated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from cq.store.embedded.binding.error import FDBError
from cq.store.embedded.binding.keys import KeyValue, after
from cq.store.embedded.writes.read_set import OffsetSelector
from cq.store.embedded.writes.writes import Row

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

Read = Callable[[OffsetSelector, OffsetSelector, int, int], tuple[list[Row], bool]]
"""Reads one piece: begin, end, `limit` (0: no limit), `max_bytes`. Returns rows, and whether more follow."""


def piece_bytes(mode: int, iteration: int) -> int:
    """The approximate bytes of one piece. An iterator may be left early, so its first piece is small."""
    if mode == EXACT:
        return _UNLIMITED
    if mode == ITERATOR:
        return min(int(_MODE_BYTES[LARGE] * _GROWTH ** (iteration - 1)), _LARGEST)
    return _MODE_BYTES[mode]


class FDBRange:
    """Iterates over `KeyValue`s. All errors, including those of the first piece, are raised by the iteration."""

    __slots__ = ("_begin", "_end", "_error", "_first", "_limit", "_mode", "_read", "_reverse")

    def __init__(
        self,
        read: Callable[..., tuple[list[Row], bool]],
        begin: OffsetSelector,
        end: OffsetSelector,
        limit: int,
        reverse: bool,
        mode: int,
    ) -> None:
        self._read = read
        self._begin, self._end = begin, end
        self._limit = limit
        self._reverse = reverse
        self._mode = mode
        self._first: tuple[list[Row], bool] = ([], False)
        self._error: FDBError | None = None
        try:
            self._first = self._piece(begin, end, limit, mode, 1)
        except FDBError as error:
            self._error = error

    def to_list(self) -> list[KeyValue]:
        """All rows."""
        if self._mode == ITERATOR:
            return list(self._iterate(EXACT if self._limit > 0 else WANT_ALL))
        return list(self._iterate(self._mode))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        if self._error is not None:
            raise self._error
        begin, end, limit = self._begin, self._end, self._limit
        (rows, more), iteration = self._first, 1
        while rows:
            yield from map(_row, rows)
            if not more or limit == len(rows):
                return
            limit -= len(rows) if limit else 0
            if self._reverse:
                end = OffsetSelector(rows[-1][0], 1)
            else:
                begin = OffsetSelector(after(rows[-1][0]), 1)
            iteration += 1
            rows, more = self._piece(begin, end, limit, mode, iteration)

    def _piece(
        self, begin: OffsetSelector, end: OffsetSelector, limit: int, mode: int, iteration: int
    ) -> tuple[list[Row], bool]:
        return self._read(begin, end, limit=limit, mode=mode, max_bytes=piece_bytes(mode, iteration))
