"""The share of a queue's keys that fail. Above a limit the deployment is broken, not the data."""

from __future__ import annotations

from threading import Lock

from cq.failure import KeyFailure


class FailureShare:
    """Counts the keys of a queue in this process; thread-safe.

    `is_broken` is true from ten different failed keys on, if they are over a fifth of the recently counted keys.
    """

    MIN_FAILED = 10
    SHARE = 0.2
    _WINDOW = 10_000

    def __init__(self) -> None:
        self.is_paused = False
        """Whether this process has paused the queue; the workers of its other buckets then stop, too."""
        self._lock = Lock()
        self._failed: dict[bytes, KeyFailure] = {}
        self._reported = 0

    def report(self, reported: int, failed: dict[bytes, KeyFailure]) -> None:
        """Count the keys of a committed pass."""
        with self._lock:
            self._reported += reported
            self._failed.update(failed)
            if self._reported > self._WINDOW:
                self._reported //= 2
                self._failed = dict(list(self._failed.items())[len(self._failed) // 2 :])

    @property
    def is_broken(self) -> bool:
        """Whether to pause the queue instead of setting more keys aside."""
        with self._lock:
            failed = len(self._failed)
            return failed >= self.MIN_FAILED and failed > self.SHARE * (failed + self._reported)

    @property
    def latest(self) -> KeyFailure:
        """The latest failure."""
        with self._lock:
            return next(reversed(self._failed.values()), KeyFailure(""))

    def describe(self) -> str:
        """Return the reason for a pause, with the latest error."""
        latest = self.latest
        with self._lock:
            failed = len(self._failed)
            return f"{failed} of the last {failed + self._reported} keys failed, the latest with: {latest}"
