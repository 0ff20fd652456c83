"""Publishes a queue's clouds: a worker's task, which wakes when the top has changed.

What has changed is marked by the passes, for each group. A step takes the marks one after the other: it reads the
group's first n entries, and writes a new version of the cloud if they differ from what is published. The mark is
removed in the same transaction, if it is still the one that was read: a later change leaves it.

Any number of workers may publish. A publication really reads the cloud's head, so of two at once one begins again
and finds the other's; and the generation that readers use, so none comes after a switch to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cq import runtime
from cq.admin.backfill import parse_generation
from cq.config.queue import ObserverConfig, QueueConfig
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys, after, prefix_end
from cq.keys.top import CloudKeys, TopKeys, group_of
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.observers.top.cloud import CLOUD_BYTES, PIECE_BYTES, CloudHead, digest_of, encode_entries
from cq.observers.top.index import NAME
from cq.observers.top.ranking import entry_of
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.transact import transact

BUILDING_SECONDS: Final = 1.0
"""How often a publisher looks whether the top that it is for has been built."""
MARKS: Final = 100
"""How many groups one step looks at."""
_HEADS: Final = 20  # how many clouds of earlier generations are marked at once; they may have 100 kB each


@dataclass(slots=True)
class _MarkScan:
    """One way through all marks.

    Attributes:
        notification: the value that was there when it began.
        place: behind which mark to go on.
        pause: the seconds until the first of the groups left for later may be published, None if there are none.
    """

    notification: bytes
    place: bytes
    pause: float | None = None


class Publisher(Task):
    """The clouds of one generation of a queue's top; a task for a worker.

    Args:
        db: a database of either store.
        config: the queue's configuration.
        observer: the top in it.
    """

    notification: bytes

    def __init__(self, db: Database, config: QueueConfig, observer: ObserverConfig) -> None:
        self._db = db
        self._config = config
        self._generation = observer.generation
        self._n: int = observer.settings["n"]
        self._every: float = observer.settings["every"] / 1000
        self._queue = QueueKeys(config.name)
        self._keys = TopKeys(self._queue, observer.generation)
        self._clouds = CloudKeys(self._queue)
        self._adopted = False
        self._round: _MarkScan | None = None
        self._next = runtime.monotonic()
        self.notification = self._keys.notification

    def __str__(self) -> str:
        return f"the cloud of queue {self._config.name!r}"

    def prepare(self, tr: Transaction) -> None:
        """Notify the task that clouds of earlier generations may be there, of which nothing else would tell."""
        if not tr.snapshot.get(self._keys.adopted).present():
            tr.set_versionstamped_value(self.notification, INCOMPLETE_VERSIONSTAMP)

    def run(self) -> float:
        """One step: up to 100 groups. Returns when to run again, as tasks do.

        Never publishes a group's cloud twice within the time configured, by this worker's clock and that of the worker
        that published it last. Raises the store's `FDBError`; the step can then be taken again.
        """
        if self._round is None:
            started = self._start()
            if isinstance(started, float):
                return started
            self._round = started
        return self._step(self._round)

    def _start(self) -> _MarkScan | float:
        """A new round, or when to look again whether there is to be one."""
        pause = self._next - runtime.monotonic()
        if pause > 0:
            return pause
        notification, current = transact(self._db, self._look)
        if notification is None:
            return DONE
        if not current:
            return BUILDING_SECONDS
        if not self._adopted:
            self._adopt()
        return _MarkScan(notification, self._keys.marks())

    def _look(self, tr: Transaction) -> tuple[bytes | None, bool]:
        notification = tr.snapshot.get(self._keys.notification)
        return notification.value, self._is_current(tr)

    def _is_current(self, tr: Transaction) -> bool:
        """Whether readers use this generation; a real read, so that what depends on it does not outlive it."""
        current = tr.get(self._queue.observer_current(NAME)).value
        return current is not None and parse_generation(current) == self._generation

    def _step(self, going: _MarkScan) -> float:
        end = prefix_end(self._keys.marks())
        marks = transact(
            self._db,
            lambda tr: tr.snapshot.get_range(
                after(going.place), end, limit=MARKS, streaming_mode=WANT_ALL
            ).to_list(),
        )
        for mark in marks:
            pause = self._publish_marked(mark.key, mark.value)
            if pause > 0:
                going.pause = pause if going.pause is None else min(pause, going.pause)
            going.place = mark.key
        if len(marks) == MARKS:
            return 0.0
        self._round = None
        self._next = runtime.monotonic() + (self._every if going.pause is None else going.pause)
        if going.pause is not None:
            return going.pause
        transact(self._db, lambda tr: tr.compare_and_clear(self._keys.notification, going.notification))
        return DONE

    def _publish_marked(self, mark: bytes, value: bytes) -> float:
        group = group_of(mark[len(self._keys.marks()) :])
        pause, version = transact(self._db, lambda tr: self._publish(tr, group, value))
        if version is not None:
            emit("cloud_published", queue=self._config.name, version=version)
        return pause

    def _publish(self, tr: Transaction, group: str | None, mark: bytes) -> tuple[float, int | None]:
        """Publish a group's cloud if it differs.

        Returns 0, or after how many seconds it may be published, and the version that is published, if any.
        """
        stored = tr.get(self._clouds.head(group))
        prefix = self._keys.entries(group)
        rows = tr.snapshot.get_range(prefix, prefix_end(prefix), limit=self._n)
        if not self._is_current(tr):
            return 0.0, None
        head = None if stored.value is None else CloudHead.from_bytes(stored.value)
        now = runtime.time_ns() // 1_000_000
        if head is not None and 0 <= now - head.created < self._every * 1000:
            return (head.created - now) / 1000 + self._every, None
        tr.compare_and_clear(self._keys.mark(group), mark)
        data = first_entries(self._config, rows, len(prefix))
        digest = digest_of(data)
        if head is not None and head.digest == digest:
            return 0.0, None
        version = head.version + 1 if head else 1
        self._write(tr, group, head, data, CloudHead(version, now, digest, 0, b""))
        return 0.0, version

    def _write(
        self, tr: Transaction, group: str | None, old: CloudHead | None, data: bytes, new: CloudHead
    ) -> None:
        """Write a version, in one value or in pieces, and remove the pieces of the one before."""
        if old is not None and old.pieces:
            pieces = self._clouds.pieces(group, old.version)
            tr.clear_range(pieces, prefix_end(pieces))
        if len(data) <= PIECE_BYTES:
            tr.set(
                self._clouds.head(group), CloudHead(new.version, new.created, new.digest, 0, data).to_bytes()
            )
            return
        starts = range(0, len(data), PIECE_BYTES)
        for number, start in enumerate(starts):
            tr.set(self._clouds.piece(group, new.version, number), data[start : start + PIECE_BYTES])
        head = CloudHead(new.version, new.created, new.digest, len(starts), b"")
        tr.set(self._clouds.head(group), head.to_bytes())

    # The clouds of earlier generations

    def _adopt(self) -> None:
        """Mark all clouds there are, once for each generation: of groups that it lacks, empty ones are published."""
        place: bytes | None = self._clouds.heads()
        while place is not None:
            begin = after(place)
            place = transact(self._db, lambda tr: self._mark_published(tr, begin))  # noqa: B023 - runs at once
        self._adopted = True

    def _mark_published(self, tr: Transaction, begin: bytes) -> bytes | None:
        """Mark some of the published clouds; returns behind which to go on."""
        if not self._is_current(tr) or tr.get(self._keys.adopted).present():
            return None
        prefix = self._clouds.heads()
        rows = tr.snapshot.get_range(begin, prefix_end(prefix), limit=_HEADS).to_list()
        for row in rows:
            group = group_of(row.key[len(prefix) :])
            tr.set_versionstamped_value(self._keys.mark(group), INCOMPLETE_VERSIONSTAMP)
        if len(rows) == _HEADS:
            place: bytes = rows[-1].key
            return place
        tr.set(self._keys.adopted, b"")
        return None


def first_entries(config: QueueConfig, rows: Any, prefix_length: int) -> bytes:
    """The entries of a cloud, encoded, that these rows of an index make: as many as a cloud takes."""
    entries, size = [], 0
    for row in rows:
        size += len(row.key) - prefix_length + len(row.value)
        if size > CLOUD_BYTES:
            break
        entry = entry_of(config, row.key[prefix_length:], row.value)
        entries.append((entry.key, entry.score))
    return encode_entries(entries)


def publishers(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """The tasks of a worker for a queue with a top."""
    task = Publisher(db, config, observer)
    transact(db, task.prepare)
    return [task]
