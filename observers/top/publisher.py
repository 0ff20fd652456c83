"""The publisher of a queue's clouds: a worker's task, notified when the top changes.

Passes mark each group whose top they change. A step processes the marks one by one: it reads the group's first n
entries, and writes a new version of the cloud if they differ from the published one. The same transaction removes the
mark if it is still the one that was read, so a mark by a later change stays. If versions are kept, it also writes the
new version a second time under its time, and clears what need not be kept any longer: so a version is published and
kept, or neither.

Any number of workers may publish. A publication reads the cloud's head with a conflict range, so of two concurrent ones
the second retries and finds the first's; it also reads the generation in use so, and fails after a switch to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from cq import runtime
from cq.admin.backfill import parse_generation
from cq.config.queue import ObserverConfig, QueueConfig
from cq.keys import INCOMPLETE_VERSIONSTAMP, QueueKeys, after, below, prefix_end
from cq.keys.top import CloudKeys, TopKeys, group_of, split_kept
from cq.observers.scheduling.runner import DONE
from cq.observers.scheduling.task import Task
from cq.observers.telemetry.bus import emit
from cq.observers.top.cloud import CloudHead, digest_of, first_entries, pieces_of
from cq.observers.top.index import NAME
from cq.observers.top.kept import KeptClouds
from cq.queue.bucket_state import BucketState
from cq.queue.rows import oldest_by_bucket
from cq.store.api import WANT_ALL, Database, Transaction
from cq.store.transact import transact

BUILDING_SECONDS: Final = 1.0
"""How often a publisher checks whether the backfill of its top is complete."""
MARKS: Final = 100
"""The most groups in one step."""
_HEADS: Final = 20  # clouds of earlier generations that one transaction marks; each may have 100 kB


@dataclass(slots=True)
class _MarkScan:
    """The state of one scan of all marks.

    Attributes:
        notification: its value at the start of the scan.
        place: key of the latest mark processed.
        pause: seconds until the first of the postponed groups may be published, None without any.
    """

    notification: bytes
    place: bytes
    pause: float | None = None


class Publisher(Task):
    """The task that publishes the clouds of one generation of a queue's top.

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
        self._settings = observer.settings
        self._n: int = observer.settings["n"]
        self._every: float = observer.settings["every"] / 1000
        self._queue = QueueKeys(config.name)
        self._keys = TopKeys(self._queue, observer.generation)
        self._clouds = CloudKeys(self._queue)
        self._adopted = False
        self._scan: _MarkScan | None = None
        self._next = runtime.monotonic()
        self.notification = self._keys.notification

    def __str__(self) -> str:
        return f"the cloud of queue {self._config.name!r}"

    def prepare(self, tr: Transaction) -> None:
        """Notify the task if clouds of earlier generations may exist: no change of the top would replace them."""
        if not tr.snapshot.get(self._keys.adopted).present():
            tr.set_versionstamped_value(self.notification, INCOMPLETE_VERSIONSTAMP)

    def run(self) -> float:
        """Publish the clouds of up to 100 marked groups; returns the seconds until the next step, as `Task.run`.

        Never publishes a group's cloud twice within the configured time, by this worker's clock and that of the worker
        that published it last. Raises the store's `FDBError`; the step can then be repeated.
        """
        if self._scan is None:
            started = self._start()
            if isinstance(started, float):
                return started
            self._scan = started
        return self._step(self._scan)

    def _start(self) -> _MarkScan | float:
        """A new scan, or the seconds until the next try to start one."""
        pause = self._next - runtime.monotonic()
        if pause > 0:
            return pause
        notification, current = transact(self._db, self._read_state)
        if notification is None:
            return DONE
        if not current:
            return BUILDING_SECONDS
        if not self._adopted:
            self._adopt()
        return _MarkScan(notification, self._keys.marks)

    def _read_state(self, tr: Transaction) -> tuple[bytes | None, bool]:
        notification = tr.snapshot.get(self._keys.notification)
        return notification.value, self._is_current(tr)

    def _is_current(self, tr: Transaction) -> bool:
        """Whether readers use this generation; read with a conflict range, so no write commits after a switch."""
        current = tr.get(self._queue.observer_current(NAME)).value
        return current is not None and parse_generation(current) == self._generation

    def _step(self, scan: _MarkScan) -> float:
        end = prefix_end(self._keys.marks)
        marks = transact(
            self._db,
            lambda tr: tr.snapshot.get_range(
                after(scan.place), end, limit=MARKS, streaming_mode=WANT_ALL
            ).to_list(),
        )
        for mark in marks:
            group = group_of(mark.key[len(self._keys.marks) :])
            pause, version = transact(self._db, partial(self._publish, group=group, mark=mark.value))
            if version is not None:
                emit("cloud_published", queue=self._config.name, version=version)
            if pause > 0:
                scan.pause = pause if scan.pause is None else min(pause, scan.pause)
            scan.place = mark.key
        if len(marks) == MARKS:
            return 0.0
        self._scan = None
        self._next = runtime.monotonic() + (self._every if scan.pause is None else scan.pause)
        if scan.pause is not None:
            return scan.pause
        # A mark set during the scan also changed the notification, which then stays.
        transact(self._db, lambda tr: tr.compare_and_clear(self._keys.notification, scan.notification))
        return DONE

    def _publish(self, tr: Transaction, group: str | None, mark: bytes) -> tuple[float, int | None]:
        """Publish a group's cloud if it differs.

        Returns the seconds until it may be published (0 if processed), and the published version, if any.
        """
        stored = tr.get(self._clouds.head(group))
        prefix = self._keys.entries(group)
        rows = tr.snapshot.get_range(*below(prefix), limit=self._n)
        if not self._is_current(tr):
            return 0.0, None
        head = None if stored.value is None else CloudHead.from_bytes(stored.value)
        now = runtime.time_ns() // 1_000_000
        if head is not None and 0 <= now - head.created < self._every * 1000:
            return (head.created - now) / 1000 + self._every, None
        tr.compare_and_clear(self._keys.mark(group), mark)  # a mark by a later change stays
        data = first_entries(self._config, rows, len(prefix))
        digest = digest_of(data)
        if head is not None and head.digest == digest:
            return 0.0, None
        through = read_through(tr, self._queue, head.through if head else 0)
        kept = KeptClouds.of(tr, self._config, self._settings)
        version = head.version + 1 if head else 1
        if head is not None and head.pieces:
            tr.clear_range(*below(self._clouds.pieces(group, head.version)))
        pieces = pieces_of(data)
        for number, piece in enumerate(pieces):
            tr.set(self._clouds.piece(group, version, number), piece)
        new = CloudHead(version, now, digest, len(pieces), b"" if pieces else data, through)
        tr.set(self._clouds.head(group), new.to_bytes())
        if kept is not None:
            self._clear_outdated(tr, kept, group, now)
            for number, value in enumerate([new.to_bytes(), *pieces]):
                tr.set(self._clouds.kept(group, now, version, number), value)
        return 0.0, version

    def _clear_outdated(self, tr: Transaction, kept: KeptClouds, group: str | None, now: int) -> None:
        """Clear the versions that need not be kept any longer, and those of a clock that was far ahead.

        The version that was the newest one when the time began for which versions are kept stays.
        """
        keys = self._clouds
        begin, end = below(keys.kept_of(group))
        for row in tr.snapshot.get_range(
            begin, keys.kept_from(group, now - kept.keep), limit=1, reverse=True
        ):
            first = split_kept(row.key[len(keys.all_kept) :])
            tr.clear_range(begin, keys.kept(group, first.time, first.version, 0))
        if kept.step:
            tr.clear_range(keys.kept_from(group, now - now % kept.step), keys.kept_from(group, now))
        tr.clear_range(keys.kept_from(group, now + kept.keep), end)

    # The clouds of earlier generations

    def _adopt(self) -> None:
        """Mark all existing clouds, once per generation; groups that this generation lacks get an empty cloud."""
        place: bytes | None = self._clouds.heads
        while place is not None:
            begin = after(place)
            place = transact(self._db, lambda tr: self._mark_published(tr, begin))  # noqa: B023 - runs at once
        self._adopted = True

    def _mark_published(self, tr: Transaction, begin: bytes) -> bytes | None:
        """Mark up to `_HEADS` published clouds; returns the key to continue after, None at the end."""
        if not self._is_current(tr) or tr.get(self._keys.adopted).present():
            return None
        prefix = self._clouds.heads
        rows = tr.snapshot.get_range(begin, prefix_end(prefix), limit=_HEADS).to_list()
        for row in rows:
            group = group_of(row.key[len(prefix) :])
            tr.set_versionstamped_value(self._keys.mark(group), INCOMPLETE_VERSIONSTAMP)
        if len(rows) == _HEADS:
            place: bytes = rows[-1].key
            return place
        tr.set(self._keys.adopted, b"")
        return None


def read_through(tr: Transaction, queue: QueueKeys, before: int) -> int:
    """The version of the store up to which the values include all updates that are not set aside.

    Updates that are neither queued nor staged are in the values, and later rows of a bucket have later versions. Of
    staged updates the version is not known, so while a bucket has any, the result is that of an earlier read.

    Args:
        tr: the transaction that reads the values.
        queue: the keys of the queue.
        before: the result of an earlier read; 0 without one.
    """
    read_version, oldest = tr.get_read_version(), oldest_by_bucket(tr.snapshot, queue)
    states = [tr.snapshot.get(queue.state(*bucket)) for bucket in oldest]
    if any(BucketState.from_bytes(state.value).staged for state in states):
        return before
    versions = [version - 1 for version in oldest.values() if version is not None]
    return max(before, min([read_version.wait(), *versions]))


def publishers(db: Database, config: QueueConfig, observer: ObserverConfig) -> list[Task]:
    """A worker's tasks for a queue with a top."""
    task = Publisher(db, config, observer)
    transact(db, task.prepare)
    return [task]
