"""The size of the passes over one bucket: smaller after a failure or a slow pass, larger after a success.

A pass should take less than a second: a transaction lives for five, and other workers wait for the bucket. Each size is
halved by a failure that it may have caused, and doubled by a success, up to the given limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from cq import runtime
from cq.keys import QueueKeys
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import Limits
from cq.store.api import NOT_COMMITTED, TRANSACTION_TOO_OLD
from cq.store.sizes import SET_COPIES, WRITE_BYTES

SLOW_SECONDS: Final = 1.0
_MIN_SHARE: Final = 1 / 64
# If passes are slow at any size, smaller ones would only be more of them.
_MIN_SHARE_WHEN_SLOW: Final = 1 / 16
_REFUSALS: Final = (NOT_COMMITTED, TRANSACTION_TOO_OLD)
_LEAST_READ: Final = 100_000  # bytes of rows, if a pass could take few of the rows read
LOW_RATE: Final = 0.5
HIGH_RATE: Final = 25.0
"""Bytes that observers write per byte of a written value, as assumed before the first report."""


class KeyLimit:
    """A limit on a number of keys, up to `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = most

    def halve(self, failed: int) -> None:
        """Allow half of the number of keys of a failed pass."""
        self.now = max(1, failed // 2)

    def double(self) -> None:
        """Allow twice as many keys, after a success."""
        self.now = min(2 * self.now, self.most)


class PassSize:
    """The size of the next pass over one bucket.

    Args:
        given: the limits of each pass.
        observer_rate: bytes that observers write per byte of a written value, before the first report; 0: no observers.
        clock: returns the time in seconds.

    Attributes:
        share: the share of the bytes and keys of the given limits that a pass may use now.
        reports, backfills, takes: the number of keys that a pass may report, backfill, and take from the rows.
    """

    def __init__(
        self, given: Limits, *, observer_rate: float = 0.0, clock: Callable[[], float] = runtime.monotonic
    ) -> None:
        self.given = given
        self.share = 1.0
        self.reports, self.backfills = KeyLimit(given.max_report), KeyLimit(given.max_report)
        self.takes = KeyLimit(max(2, given.max_report))  # so that a limit of one key is a limit
        self._read_bytes = given.read_bytes
        self._observer_rate = observer_rate
        self._clock = clock
        self._begun = clock()

    def begin(self) -> None:
        """Note the start of a pass."""
        self._begun = self._clock()

    def begin_small(self) -> None:
        """Begin with a single key, as a worker seems to have died with one of the keys."""
        self.reports.now = self.backfills.now = self.takes.now = 1

    @property
    def max_take(self) -> int | None:
        """The number of different keys to take from the rows; None: no limit, as no pass has failed of late."""
        return None if self.takes.now == self.takes.most else self.takes.now

    def limits(self) -> Limits:
        """Return the limits of the next pass."""
        given, share = self.given, self.share
        limits = given
        if share < 1.0:
            limits = replace(
                given,
                read_bytes=int(given.read_bytes * share),
                load_bytes=int(given.load_bytes * share),
                write_bytes=int(given.write_bytes * share),
                repack_bytes=int(given.repack_bytes * share),
                max_report=max(1, int(given.max_report * share)),
            )
        if self._read_bytes < limits.read_bytes:
            limits = replace(limits, read_bytes=self._read_bytes)
        if self._observer_rate:
            # Report only as much as keeps the predicted writes of observers to their limit.
            most = max(1, int(share * given.observer_bytes / self._observer_rate))
            limits = replace(limits, reported_bytes=most, load_bytes=min(limits.load_bytes, most))
        return limits

    def refused(self, code: int) -> None:
        """Halve the share if the store has refused a pass as too old or in conflict, and no key is to blame."""
        if code in _REFUSALS:
            self._halve_share(_MIN_SHARE)

    def halve_keys(self, failed: Pass, *, is_too_large: bool) -> bool:
        """Halve the number of keys that a failed pass has reported or taken; return False if it was a single one."""
        blamed, taken = len(failed.blamed), len(failed.view.taken.updates)
        # Take fewer rows first: with many folded keys the size does not depend on the reported ones.
        if (is_too_large and taken > max(1, blamed)) or (not blamed and taken > 1):
            self.takes.halve(taken)
        elif blamed > 1:
            (self.backfills if failed.is_backfilling else self.reports).halve(blamed)
        else:
            return False
        return True

    def halve_reads(self, read: int) -> None:
        """Read half of these bytes of rows, as the updates to set aside have made the transaction too large."""
        self._read_bytes = min(self._read_bytes, read) // 2

    def committed(self, result: PassResult, reported: Sequence[bytes], name: str) -> None:
        """Adapt the sizes to a committed pass over a bucket of queue `name` that has reported these keys."""
        seconds = self._clock() - self._begun
        if seconds > SLOW_SECONDS:
            self._halve_share(_MIN_SHARE_WHEN_SLOW)
        elif 2 * seconds < SLOW_SECONDS:
            self.share = min(1.0, 2 * self.share)
        if result.reported or result.purged or result.expired:
            self.reports.double()
        if result.backfilled:
            self.backfills.double()
        self.takes.double()
        before, self._read_bytes = self._read_bytes, self.given.read_bytes
        if result.cut_at is not None:  # rows read but not taken are read again
            self._read_bytes = min(max(_LEAST_READ, 5 * result.cut_at // 4), self._read_bytes)
        elif result.aside:  # more keys to set aside may follow
            self._read_bytes = min(max(_LEAST_READ, 2 * before), self._read_bytes)
        if result.observer_changes and reported:
            self._learn_rate(result, reported, len(QueueKeys(name).value(b"")))

    def _learn_rate(self, result: PassResult, reported: Sequence[bytes], prefix: int) -> None:
        cost = WRITE_BYTES + SET_COPIES * (prefix + sum(map(len, reported)) / len(reported))
        rate, known = result.observer_bytes / (result.observer_changes * cost), self._observer_rate
        self._observer_rate = max(0.1, rate if rate > known else 0.7 * known + 0.3 * rate)

    def _halve_share(self, least: float) -> None:
        self.share = max(min(least, self.share), self.share / 2)
