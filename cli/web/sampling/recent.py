"""Samples of queues over the last hour, for charts."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from cq.observers.monitoring.store_overview import Overview

_SECONDS: Final = 3_600.0
_MOST_SAMPLES: Final = 1_800
_MOST_QUEUES: Final = 1_000


class Sample(NamedTuple):
    """A queue at one time: seconds since 1970, queued rows, age of the oldest, and updates combined per second.

    `exact` says whether the rows were counted; else their number is an estimate.
    """

    at: float
    rows: int
    age: float
    rate: float
    exact: bool = True


class Recent:
    """The samples of the last hour by queue, of the first 1,000 queues; for use by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, deque[Sample]] = {}

    def add(self, at: float, seen: Overview) -> None:
        """Add a sample of each queue, and remove queues that no longer exist."""
        with self._lock:
            self._add(at, seen)

    def _add(self, at: float, seen: Overview) -> None:
        names = {queue.name for queue in seen.queues[:_MOST_QUEUES]}
        self._samples = {name: kept for name, kept in self._samples.items() if name in names}
        for queue in seen.queues[:_MOST_QUEUES]:
            kept = self._samples.setdefault(queue.name, deque(maxlen=_MOST_SAMPLES))
            rate = seen.activity[queue.name].updates_per_second
            kept.append(Sample(at, queue.rows, queue.oldest_seconds or 0.0, rate, queue.exact))
            while kept[0].at < at - _SECONDS:
                kept.popleft()

    def of(self, name: str) -> Sequence[Sample]:
        """The samples of a queue, the oldest first."""
        with self._lock:
            return tuple(self._samples.get(name, ()))
