"""How much a pass takes: less after passes that were slow or refused, more again after quick ones.

A pass is to stay under a second: a transaction lives five, and others wait for the bucket. What it may read and write
is halved when it took longer, or when the store has refused it for being too old, too large or in conflict; it grows
again with passes that leave time, up to the limits given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cq import runtime
from cq.passes.batch import Limits
from cq.store.api import NOT_COMMITTED, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD

SLOW_SECONDS: Final = 1.0
QUICK_SECONDS: Final = 0.25
_MIN_SHARE: Final = 1 / 64
_MIN_SHARE_WHEN_SLOW: Final = (
    1 / 16
)  # where passes are slow whatever their size, smaller ones would only be more
_REFUSALS: Final = (NOT_COMMITTED, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD)


class Pace:
    """The pace of the passes over one bucket.

    Args:
        clock: of this process, in seconds.

    Attributes:
        share: of the limits given, that a pass may take now.
    """

    def __init__(self, clock: Callable[[], float] = runtime.monotonic) -> None:
        self.share = 1.0
        self._clock = clock
        self._begun = clock()

    def begin(self) -> None:
        """A pass begins."""
        self._begun = self._clock()

    def committed(self) -> None:
        """It is committed."""
        seconds = self._clock() - self._begun
        if seconds > SLOW_SECONDS:
            self._slow_down(_MIN_SHARE_WHEN_SLOW)
        else:
            growth = 1.5 if seconds < QUICK_SECONDS else 1.1
            if seconds * growth < SLOW_SECONDS:
                self.share = min(1.0, self.share * growth)

    def failed(self, code: int) -> None:
        """It has failed with this error of the store."""
        if code in _REFUSALS:
            self._slow_down(_MIN_SHARE)

    def limits(self, given: Limits) -> Limits:
        """The limits of the next pass."""
        if self.share == 1.0:
            return given
        return replace(
            given,
            read_bytes=int(given.read_bytes * self.share),
            load_bytes=int(given.load_bytes * self.share),
            write_bytes=int(given.write_bytes * self.share),
            repack_bytes=int(given.repack_bytes * self.share),
            max_report=self.scaled(given.max_report),
        )

    def scaled(self, keys: int) -> int:
        """How many keys the next pass reports at most, of so many."""
        return max(1, int(keys * self.share))

    def _slow_down(self, least: float) -> None:
        self.share = max(min(least, self.share), self.share / 2)
