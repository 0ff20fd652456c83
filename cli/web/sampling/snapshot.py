"""Snapshots: the last answers of the store to the questions of open pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from cq.cli.web.sampling.recent import Recent
from cq.store import OpenDatabase

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
