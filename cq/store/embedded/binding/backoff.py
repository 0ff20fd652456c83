"""Retry delays, as in FoundationDB: random, with a maximum that doubles with every failure."""

from __future__ import annotations

import random

from cq.store.embedded.binding.error import FUTURE_VERSION, TRANSACTION_TOO_OLD

FIRST_SECONDS = 0.01
_GROWTH = 2.0
# These errors are not caused by contention, so a longer delay would not help.
_NOT_CROWDED = frozenset({TRANSACTION_TOO_OLD, FUTURE_VERSION})


class BackoffDelays:
    """The delays of one transaction. A commit or a reset starts again with new delays."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def next(self, code: int, longest: float) -> float:
        """The seconds to wait after an error, at most `longest`."""
        if code in _NOT_CROWDED:
            return min(FIRST_SECONDS, longest)
        delay = min(self._next, longest) * random.random()  # noqa: S311
        self._next = min(self._next * _GROWTH, longest)
        return delay
