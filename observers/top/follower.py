"""A follower of a published cloud: one watch per process, for any number of threads and open pages that wait.

A thread keeps the newest cloud in memory, and a watch on the store for the next. It notifies the waiting callers, in
threads or in asyncio, which take the newest cloud; no backlog is kept for slow callers.

A page may come from another server that knew a newer version than this process does yet. So the thread reads the store
before a caller gets an older version: that is correct only if the top was removed and its versions started again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from cq import runtime
from cq.backoff import delay_after
from cq.observers.top.cloud import Cloud, CloudReader
from cq.plain_text import describe
from cq.store.api import Database
from cq.store.transact import transact
from cq.store.watch import WatchSlot

SAFETY_SECONDS: Final = 30.0
"""How often the store is read even if the watch does not fire."""

log = logging.getLogger("cq.cloud")


class CloudFollower:
    """The newest cloud of a queue, in memory, for all threads and tasks of a process.

    Create one for each cloud and process, after forking, and close it at the end; it is also a context manager. While
    the store cannot be read, `latest` stays the same, and the read is retried, at least every 10 s.

    Args:
        db: a database of either store.
        name: the queue's name.
        group: whose cloud, for a queue with groups.

    Attributes:
        latest: the newest cloud known to this process, None before the first.
        problem: why the cloud cannot be read now; empty if it can.
    """

    def __init__(self, db: Database, name: str, group: str | None = None) -> None:
        self.latest: Cloud | None = None
        self.problem = ""
        self._db = db
        self._reader = CloudReader(name, group)
        self._lock = Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._begun = self._done = 0  # reads of the store
        self._watch = WatchSlot()
        self._wake, self._closing, self._ended = runtime.event(), runtime.event(), runtime.event()
        runtime.start_thread(self._run, f"cq-cloud-{name}")

    def __enter__(self) -> CloudFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, so that callers should not wait any more."""
        return self._closing.is_set()

    def wait(self, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """Wait for a cloud of another version, which is a newer one, and return it.

        Args:
            version: of the caller's cloud; 0 without one. Versions in between may be skipped.
            timeout: in seconds; None waits for ever.

        Returns:
            The cloud; None at the timeout, or once the follower is closed.
        """
        until = None if timeout is None else runtime.monotonic() + timeout
        changed = runtime.event()
        with self._listening(changed.set):
            read = self._read_needed(version)
            while (cloud := self._newer(version, read)) is None and not self.is_closed:
                if not changed.wait(None if until is None else max(0.0, until - runtime.monotonic())):
                    break
                changed.clear()
            return cloud

    async def wait_async(self, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """As `wait`, for asyncio."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed, so no task awaits the event any more
                loop.call_soon_threadsafe(changed.set)

        with self._listening(notify), suppress(TimeoutError):
            read = self._read_needed(version)
            async with asyncio.timeout(timeout):
                while (cloud := self._newer(version, read)) is None and not self.is_closed:
                    await changed.wait()
                    changed.clear()
                return cloud
        return None

    def close(self, timeout: float = 10.0) -> None:
        """Stop following, and end all waits. From any thread.

        Waits up to `timeout` seconds for a read of the store under way.
        """
        self._closing.set()
        self._wake.set()
        self._notify()
        self._ended.wait(timeout)

    # Waiting callers

    @contextmanager
    def _listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """A context in which `listener` is called, from any thread, after each read of the store."""
        with self._lock:
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _read_needed(self, version: int) -> int:
        """The number of the read that must be done before an older cloud counts as the newest; requests that read."""
        with self._lock:
            read, latest = self._begun + 1, self.latest  # a read that has begun may have seen an older state
        if latest is not None and latest.version < version:
            self._wake.set()
        return read

    def _newer(self, version: int, read: int) -> Cloud | None:
        """The latest cloud if its version is newer than `version`, or older as of the read number `read`."""
        with self._lock:
            cloud, is_sure = self.latest, self._done >= read
        if cloud is None or cloud.version == version or (cloud.version < version and not is_sure):
            return None
        return cloud

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    # The follower's thread

    def _run(self) -> None:
        failures = 0
        while not self.is_closed:
            self._wake.clear()
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - any error may be temporary
                self._note(describe(error))
                failures += 1
                self._closing.wait(delay_after(failures))
            else:
                self._note("")
                failures = 0
                self._wake.wait(SAFETY_SECONDS)
            if self._watch.is_free and self._watch.failures:  # the next watch would fail as well, perhaps
                self._closing.wait(delay_after(self._watch.failures))
        self._watch.cancel()
        self._ended.set()

    def _read(self) -> None:
        """Store a newer cloud, or watch for one."""
        with self._lock:
            self._begun += 1
        version = 0 if self.latest is None else self.latest.version
        cloud, watch = transact(self._db, lambda tr: self._reader.newer(tr, version))
        if watch is not None:
            self._watch.hold(watch, self._wake.set, self._wake.set)
        with self._lock:
            self.latest = cloud or self.latest
            self._done = self._begun
        self._notify()
        if cloud is not None:
            self._wake.set()  # the next read makes a watch for the next cloud

    def _note(self, problem: str) -> None:
        if problem and not self.problem and not self.is_closed:
            log.warning("the cloud of queue %r cannot be read: %s", self._reader.name, problem)
        self.problem = problem
