"""The share of its limits that a pass may use: less after slow or failed passes, more after quick ones.

A pass should take less than a second: a transaction lives for five, and other workers wait for the bucket. The share is
halved if a pass took longer, or if the store refused it as too old, too large or in conflict. It grows with passes that
are quick enough, up to the given limits.
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
# If passes are slow at any size, smaller ones would only be more of them.
_MIN_SHARE_WHEN_SLOW: Final = 1 / 16
_REFUSALS: Final = (NOT_COMMITTED, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD)


class Pace:
    """The pace of the passes over one bucket.

    Args:
        clock: returns the time in seconds.

    Attributes:
        share: the share of the limits that a pass may use now.
    """

    def __init__(self, clock: Callable[[], float] = runtime.monotonic) -> None:
        self.share = 1.0
        self._clock = clock
        self._begun = clock()

    def begin(self) -> None:
        """Note the start of a pass."""
        self._begun = self._clock()

    def committed(self) -> None:
        """Adapt the share to the time that the committed pass took."""
        seconds = self._clock() - self._begun
        if seconds > SLOW_SECONDS:
            self._slow_down(_MIN_SHARE_WHEN_SLOW)
        else:
            growth = 1.5 if seconds < QUICK_SECONDS else 1.1
            if seconds * growth < SLOW_SECONDS:
                self.share = min(1.0, self.share * growth)

    def failed(self, code: int) -> None:
        """Adapt the share to an error of the store."""
        if code in _REFUSALS:
            self._slow_down(_MIN_SHARE)

    def limits(self, given: Limits) -> Limits:
        """Return the limits of the next pass."""
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
        """Return the number of keys that the next pass may report, of `keys`."""
        return max(1, int(keys * self.share))

    def _slow_down(self, least: float) -> None:
        self.share = max(min(least, self.share), self.share / 2)
