"""The sampler: it reads the store for all pages, so that the cost does not depend on the number of open pages.

A topic is read while a page that needs it is open, and once for a request of such a page, but never more often than its
reader's interval. A round reads at most `MAX_TOPICS` topics, those with the oldest answers first, and rounds are
`ROUND_SECONDS` apart. So the store gets a limited number of reads per second; with many different pages open, each is
updated less often. The answers are a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from typer import BadParameter

from cq import runtime
from cq.errors import CqError
from cq.plain_text import describe, message_of, printable
from cq.store import OpenDatabase
from cq.store.api import error_code


def problem_of(error: BaseException) -> str:
    """The text about an error of cq, of the store or of a form's field; empty for any other one: a bug."""
    if isinstance(error, CqError | BadParameter):
        return printable(str(error))
    return "" if error_code(error) is None else printable(f"the store does not answer: {message_of(error)}")


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
        value: the latest answer; None if there has been none.
        error: why the latest read failed; else empty. `value` is then of an earlier read.
    """

    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The last answers to all topics that open pages need.

    Attributes:
        number: from 0; each later snapshot has a higher one.
        readings: {topic: its last answer}.
    """

    number: int = 0
    readings: Mapping[Topic, Reading] = field(default_factory=dict)

    def value(self, topic: Topic, kind: type[T]) -> T | None:
        """The latest answer to a topic; None if there has been none."""
        found = self.readings.get(topic)
        return found.value if found is not None and isinstance(found.value, kind) else None

    def error(self, topic: Topic) -> str:
        """Why the latest read of a topic failed; empty if it did not."""
        found = self.readings.get(topic)
        return "" if found is None else found.error


_log = logging.getLogger(__name__)

MAX_TOPICS: Final = 8
"""Topics that one round reads."""
ROUND_SECONDS: Final = 0.5
"""Least time between two rounds."""
ANSWER_SECONDS: Final = 10.0
"""How long a request waits for the first answer to its topics."""
_IDLE_SECONDS: Final = 60.0
"""After this time, answers that no open page needs are removed."""


class Sampler:
    """Snapshots of one store, for the tasks of one event loop. Its reads run in one thread of its own.

    Args:
        db: a database of either store.
        readers: {kind of topic: its reader}.
    """

    def __init__(self, db: OpenDatabase, readers: Mapping[str, Reader]) -> None:
        self._db, self._readers = db, readers
        self._open: Counter[Topic] = Counter()
        self._asked: set[Topic] = set()
        self._read_at: dict[Topic, float] = {}  # by the monotonic clock
        self._wake, self._changed, self._stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "cq-web-sampler")
        self.snapshot = StoreSnapshot()

    async def run(self) -> None:
        """Read what open pages need, until `stop`."""
        loop = asyncio.get_running_loop()
        while not self.is_stopped:
            self._wake.clear()
            due = self._due()
            if due:
                self._publish(await loop.run_in_executor(self._thread, self._read, due))
                # Between two rounds, also if requests ask for more.
                await wait_for_event(self._stopped, ROUND_SECONDS)
            else:
                await wait_for_event(self._wake, self._seconds_until_due())
        self._thread.shutdown()

    def stop(self) -> None:
        """End `run`, and all waits of `newer`, after the read under way; call it in the event loop."""
        self._stopped.set()
        self._wake.set()
        self._announce()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    @contextmanager
    def watching(self, topics: Sequence[Topic]) -> Iterator[None]:
        """A context in which the sampler keeps reading these topics."""
        self._open.update(topics)
        self._wake.set()
        try:
            yield
        finally:
            self._open.subtract(topics)
            self._open += Counter()  # removes topics with a count of 0

    async def answered(self, topics: Sequence[Topic], *, again: bool = False) -> StoreSnapshot:
        """A snapshot with recent answers to these topics; after 10 seconds, the latest one without them.

        With `again` they are read again, however recent they are: something has just changed the store.
        """
        if again:
            self._read_at |= dict.fromkeys(self._read_at.keys() & {*topics}, 0.0)
        missing = {topic for topic in topics if self._is_due(topic)}
        begun = runtime.monotonic()
        while missing and not self.is_stopped and runtime.monotonic() < begun + ANSWER_SECONDS:
            self._asked |= missing
            self._wake.set()
            await self.newer(self.snapshot.number, ANSWER_SECONDS)
            missing = {topic for topic in missing if self._read_at.get(topic, 0.0) < begun}
        return self.snapshot

    async def newer(self, number: int, seconds: float) -> StoreSnapshot | None:
        """The next snapshot after this number; None after `seconds`, and when the sampler is stopped."""
        if self.snapshot.number <= number and not self.is_stopped:
            await wait_for_event(self._changed, seconds)
        return self.snapshot if self.snapshot.number > number else None

    def _due(self) -> list[Topic]:
        """The topics to read now, those with the oldest answers first."""
        due = [topic for topic in {*self._open, *self._asked} if self._is_due(topic)]
        return sorted(due, key=lambda topic: self._read_at.get(topic, 0.0))[:MAX_TOPICS]

    def _is_due(self, topic: Topic) -> bool:
        return self._due_at(topic) <= runtime.monotonic()

    def _due_at(self, topic: Topic) -> float:
        read_at = self._read_at.get(topic)
        return 0.0 if read_at is None else read_at + self._readers[topic.kind].seconds

    def _seconds_until_due(self) -> float | None:
        times = [self._due_at(topic) for topic in self._open]
        return max(0.0, min(times) - runtime.monotonic()) if times else None

    def _read(self, topics: Sequence[Topic]) -> dict[Topic, Reading]:
        """Answer the topics; runs in the sampler's thread."""
        return {topic: self._reading(topic) for topic in topics}

    def _reading(self, topic: Topic) -> Reading:
        try:
            return Reading(self._readers[topic.kind].read(self._db, topic.name))
        except Exception as error:  # noqa: BLE001 - the pages show it
            problem = problem_of(error)
            if not problem:  # a bug: the other topics continue
                _log.exception("cq web: the topic %s cannot be read", topic)
            return Reading(error=problem or describe(error))

    def _publish(self, found: Mapping[Topic, Reading]) -> None:
        """Make the next snapshot. A failed read keeps the former answer, so that pages can still show it."""
        now, before = runtime.monotonic(), self.snapshot.readings
        readings = dict(before)
        for topic, answer in found.items():
            former, reading = before.get(topic), answer
            if reading.error and former is not None:
                reading = replace(former, error=reading.error)
            readings[topic] = reading
            self._read_at[topic] = now
        for topic in [each for each in readings if each not in self._open]:
            if self._read_at[topic] < now - _IDLE_SECONDS:
                del readings[topic], self._read_at[topic]
        self._asked -= found.keys()
        self.snapshot = StoreSnapshot(self.snapshot.number + 1, readings)
        self._announce()

    def _announce(self) -> None:
        """Wake the tasks that wait for a newer snapshot."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, for up to `seconds`; None: without a limit."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
