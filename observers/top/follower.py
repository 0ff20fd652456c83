"""Following a published cloud: one watch for a whole process, however many threads and open pages wait for the next.

A thread keeps the newest cloud in memory, and a watch on the store for the one after it. Those who wait are told by
it, in threads or in asyncio, and take the newest one there is: nothing is kept for anybody who is slow.

A page may have come from a server that knew a newer version than this process does yet. So the thread looks into the
store before it is given an older one, which is right only if the queue's top, and its versions, were begun anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from cq import runtime
from cq.observers.top.cloud import Cloud, CloudReader
from cq.plain_text import describe
from cq.store.api import Database
from cq.store.transact import transact
from cq.store.watch_slot import WatchSlot

SAFETY_SECONDS: Final = 30.0
"""How often the store is looked at although the watch has not fired."""
_FIRST_PAUSE: Final = 0.1
_LAST_PAUSE: Final = 10.0

log = logging.getLogger("cq.cloud")


class CloudFollower:
    """The newest cloud of a queue, in memory, for all threads and tasks of a process.

    Make one for each cloud and process, after forking, and close it at the end; it is a context manager, too. While
    the store cannot be read, the cloud stays the one it was, and reading is tried again, every 10 s at least.

    Args:
        db: a database of either store.
        name: the queue's name.
        group: whose cloud, for a queue with groups.

    Attributes:
        latest: the newest cloud that is known here, None before the first.
        problem: why it cannot be read now; empty when it can.
    """

    def __init__(self, db: Database, name: str, group: str | None = None) -> None:
        self.latest: Cloud | None = None
        self.problem = ""
        self._db = db
        self._reader = CloudReader(name, group)
        self._lock = Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._begun = self._done = 0  # looks into the store
        self._watch = WatchSlot()
        self._has_failed = False  # the watch
        self._wake, self._closing, self._ended = runtime.event(), runtime.event(), runtime.event()
        runtime.start_thread(self._run, f"cq-cloud-{name}")

    def __enter__(self) -> CloudFollower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, so that nothing more is to be waited for."""
        return self._closing.is_set()

    def wait(self, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """Wait until there is a cloud of another version than this, which is a newer one, and return it.

        Args:
            version: what the caller has; 0 for none. Versions in between may be left out.
            timeout: in seconds; None waits for ever.

        Returns None when the time is over, or the follower is closed.
        """
        until = None if timeout is None else runtime.monotonic() + timeout
        changed = runtime.event()
        with self._listening(changed.set):
            looks = self._looks_for(version)
            while (cloud := self._newer(version, looks)) is None and not self.is_closed:
                if not changed.wait(None if until is None else max(0.0, until - runtime.monotonic())):
                    break
                changed.clear()
            return cloud

    async def wait_async(self, version: int = 0, timeout: float | None = None) -> Cloud | None:
        """As `wait`, for asyncio."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
                loop.call_soon_threadsafe(changed.set)

        with self._listening(tell), suppress(TimeoutError):
            looks = self._looks_for(version)
            async with asyncio.timeout(timeout):
                while (cloud := self._newer(version, looks)) is None and not self.is_closed:
                    await changed.wait()
                    changed.clear()
                return cloud
        return None

    def close(self, timeout: float = 10.0) -> None:
        """Follow no more, and let go those who wait. From any thread.

        Waits for so many seconds at most until the store is not used any more, which is at once unless a read is
        under way.
        """
        self._closing.set()
        self._wake.set()
        self._tell()
        self._ended.wait(timeout)

    # Those who wait

    @contextmanager
    def _listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Call it, from whatever thread, each time after the store was looked at."""
        with self._lock:
            self._listeners.add(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _looks_for(self, version: int) -> int:
        """The number of the look that decides whether an older cloud than this is the newest; asks for that look."""
        with self._lock:
            looks, latest = self._begun + 1, self.latest
        if latest is not None and latest.version < version:
            self._wake.set()
        return looks

    def _newer(self, version: int, looks: int) -> Cloud | None:
        with self._lock:
            cloud, is_sure = self.latest, self._done >= looks
        if cloud is None or cloud.version == version or (cloud.version < version and not is_sure):
            return None
        return cloud

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    # Its thread

    def _run(self) -> None:
        failures = 0
        while not self.is_closed:
            self._wake.clear()
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, it may be over the next time
                self._note(describe(error))
                self._closing.wait(min(_FIRST_PAUSE * 2**failures, _LAST_PAUSE))
                failures = min(failures + 1, 10)
            else:
                self._note("")
                failures = 0
                self._wake.wait(SAFETY_SECONDS)
            if self._has_failed:
                self._has_failed = False
                self._closing.wait(_FIRST_PAUSE)
        self._watch.cancel()
        self._ended.set()

    def _look(self) -> None:
        """Take a newer cloud over, or watch for one."""
        with self._lock:
            self._begun += 1
        version = 0 if self.latest is None else self.latest.version
        cloud, watch = transact(self._db, lambda tr: self._reader.newer(tr, version))
        if watch is not None:
            self._watch.hold(watch, self._wake.set, self._watch_failed)
        with self._lock:
            self.latest = cloud or self.latest
            self._done = self._begun
        self._tell()
        if cloud is not None:
            self._wake.set()  # the next look watches for the one after it

    def _watch_failed(self) -> None:
        self._has_failed = True
        self._wake.set()

    def _note(self, problem: str) -> None:
        if problem and not self.problem and not self.is_closed:
            log.warning("the cloud of queue %r cannot be read: %s", self._reader.name, problem)
        self.problem = problem
