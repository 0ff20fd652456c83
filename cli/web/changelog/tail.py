"""The last changes of a queue in memory, for all streams that follow it: one watch and one read at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final

from cq.backoff import delay_after
from cq.cli.web.changelog.entries import Entry, EntryPage, entries_of
from cq.errors import CqError, StoreError
from cq.observers.feeds.changelog import Changelog, ChangelogPage, read_changelog
from cq.plain_text import describe, printable
from cq.store import OpenDatabase
from cq.store.api import Transaction, Void, error_code
from cq.store.transact import transact
from cq.store.watch import WatchSlot

MOST_ENTRIES: Final = 2_000
"""Changes of a queue in memory."""
MOST_BYTES: Final = 2_000_000
"""Characters of the events of a queue in memory, and stored bytes of a read; exceeded only by a single change."""
REST_SECONDS: Final = 0.05
"""Least time between two reads without a backlog."""
_CHECK_SECONDS: Final = 15.0
"""After this time without a change, read again: the queue's configuration may be another one."""

_log = logging.getLogger(__name__)


class Tail:
    """The last changes of one queue, for the tasks of one event loop, while `run` runs.

    Args:
        db: a database of either store.
        queue: name of the queue.
        pool: for reads.

    Attributes:
        problem: why the queue cannot be followed any more; else empty.
        changed: an event that is set, and replaced, when there are newer changes or a problem.
    """

    def __init__(self, db: OpenDatabase, queue: str, pool: Executor) -> None:
        self._db, self._queue, self._pool = db, queue, pool
        self._loop = asyncio.get_running_loop()
        self._entries: deque[Entry] = deque()
        self._begin, self._end, self._size = b"", b"", 0
        self._changelog: Changelog | None = None
        self._watch, self._wake = WatchSlot(), asyncio.Event()
        self._is_stopped = False
        self.problem = ""
        self.changed = asyncio.Event()

    @property
    def is_loaded(self) -> bool:
        """Whether it has the last changes."""
        return self._changelog is not None

    async def run(self) -> None:
        """Keep the last changes current, until `stop` or a problem."""
        failures = 0
        try:
            while not self._is_stopped:
                self._wake.clear()
                try:
                    changelog, page = await self._loop.run_in_executor(self._pool, self._read)
                except Exception as error:  # noqa: BLE001 - the streams end, or the read is repeated
                    if not _is_of_store(error):
                        self._fail(error)
                        return
                    failures += 1
                    await self._pause(delay_after(failures))
                    continue
                failures = 0
                self._changelog = changelog
                self._publish(page)
                if not page.more:
                    await asyncio.sleep(REST_SECONDS)
                    await self._pause(_CHECK_SECONDS)
                    if (
                        self._watch.failures
                    ):  # else watches that fail at once would cause reads without a rest
                        await asyncio.sleep(delay_after(self._watch.failures, longest=1.0))
        finally:
            self._watch.cancel()

    def stop(self) -> None:
        """End `run` after the read under way, and wake all streams."""
        self._is_stopped = True
        self._wake.set()
        self._announce()

    def after(self, position: bytes) -> list[Entry] | None:
        """The changes after a position; None if only a read can show whether the position counts."""
        found: list[Entry] = []
        for entry in reversed(self._entries):
            if entry.position <= position:
                return found[::-1] if entry.position == position else None
            found.append(entry)
        return found[::-1] if position == self._begin else None

    def _read(self) -> tuple[Changelog, EntryPage]:
        """Read the next changes, and watch for later ones; runs in a thread of the pool."""
        changelog, page, watch = transact(self._db, self._read_or_watch)
        if watch is not None:
            self._watch.hold(watch, self._wake_up, self._wake_up)
        return changelog, entries_of(page)

    def _read_or_watch(self, tr: Transaction) -> tuple[Changelog, ChangelogPage, Void | None]:
        changelog = read_changelog(tr.snapshot, self._queue)
        if changelog == self._changelog:
            page = changelog.read(tr.snapshot, self._end, MOST_ENTRIES, MOST_BYTES)
        else:  # the first read, or the queue reports to another feed now
            page = changelog.read_last(tr.snapshot, MOST_ENTRIES, MOST_BYTES)
        # The watch belongs to the read version of the page, so a change between the two fires it.
        return changelog, page, None if page.more else changelog.watch(tr)

    def _wake_up(self) -> None:
        """Read again; for any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake.set)

    def _publish(self, page: EntryPage) -> None:
        if page.begin != self._end:  # the first page, or changes between the two are missing
            self._entries.clear()
            self._begin, self._size = page.begin, 0
        self._entries.extend(page.entries)
        self._end = page.end
        self._size += sum(len(entry.text) for entry in page.entries)
        while len(self._entries) > MOST_ENTRIES or (self._size > MOST_BYTES and len(self._entries) > 1):
            oldest = self._entries.popleft()
            self._begin = oldest.position
            self._size -= len(oldest.text)
        self._announce()

    def _fail(self, error: Exception) -> None:
        self.problem = printable(str(error)) if isinstance(error, CqError) else describe(error)
        if not isinstance(error, CqError):  # a bug: the other queues continue
            _log.error("cq web: the changelog of queue %s cannot be read", self._queue, exc_info=error)
        self._announce()

    def _announce(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until a watch fires or `stop`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)


def _is_of_store(error: Exception) -> bool:
    """Whether a later read may succeed."""
    return isinstance(error, StoreError) or error_code(error) is not None
