"""Snapshots: the last answers of the store to the questions of open pages, and samples of queues over the last hour."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from cq.observers.monitoring.store_overview import Overview
from cq.store import OpenDatabase

_SECONDS: Final = 3_600.0
_MAX_SAMPLES: Final = 1_800
_MAX_QUEUES: Final = 1_000


class Sample(NamedTuple):
    """The queued rows of a queue at one time, in seconds since 1970.

    `exact` says whether the rows were counted; else their number is an estimate.
    """

    at: float
    rows: int
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
        names = {queue.name for queue in seen.queues[:_MAX_QUEUES]}
        self._samples = {name: kept for name, kept in self._samples.items() if name in names}
        for queue in seen.queues[:_MAX_QUEUES]:
            kept = self._samples.setdefault(queue.name, deque(maxlen=_MAX_SAMPLES))
            kept.append(Sample(at, queue.rows, queue.exact))
            while kept[0].at < at - _SECONDS:
                kept.popleft()

    def of(self, name: str) -> Sequence[Sample]:
        """The samples of a queue, the oldest first."""
        with self._lock:
            return tuple(self._samples.get(name, ()))


T = TypeVar("T")


class Topic(NamedTuple):
    """A question to the store: the name of its reader, and the reader's argument, such as a queue's name."""

    kind: str
    name: str = ""


OVERVIEW: Final = Topic("overview")
"""All queues, exports and workers: an `Overview`. Every page needs it, for the sentence at its top."""


HISTORY: Final = Topic("history")
"""The past hour of all queues: `{queue: its minutes}`, see `read_history`."""


class Reader(NamedTuple):
    """The function that answers the topics of one kind, and the seconds between two reads of one topic."""

    read: Callable[[OpenDatabase, str], Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The last answer to a topic.

    Attributes:
        at: time of the latest read, in seconds since 1970.
        value: the latest answer; None if there has been none.
        error: why the latest read failed; else empty. `value` is then older than `at`.
    """

    at: float
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The last answers to all topics that open pages need.

    Attributes:
        number: from 0; each later snapshot has a higher one.
        readings: {topic: its last answer}.
        recent: samples of queues in the past, for charts.
    """

    number: int = 0
    readings: Mapping[Topic, Reading] = field(default_factory=dict)
    recent: Recent = field(default_factory=Recent)

    def value(self, topic: Topic, kind: type[T]) -> T | None:
        """The latest answer to a topic; None if there has been none."""
        found = self.readings.get(topic)
        return found.value if found is not None and isinstance(found.value, kind) else None

    def error(self, topic: Topic) -> str:
        """Why the latest read of a topic failed; empty if it did not."""
        found = self.readings.get(topic)
        return "" if found is None else found.error
