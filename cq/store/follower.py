"""Followers: what one thread reads of the store is in memory, for any number of threads and open pages that wait.

A thread keeps the newest version in memory. It notifies the waiting callers, in threads or in asyncio, which take the
newest version; no backlog is kept for slow callers.

A page may come from another server that knew a newer version than this process does yet. So the thread reads the store
before a caller gets an older version: that is correct only if the versions have started again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from cq import runtime
from cq.backoff import delay_after
from cq.durations import Span, positive_seconds, span_of, timeout_of
from cq.failure import is_failure
from cq.plain_text import describe
from cq.store.api import (
    TRANSACTION_TOO_OLD,
    Database,
    Transaction,
    TransactionRead,
    Void,
    error_code,
    outlived,
)
from cq.store.transact import transact
from cq.store.watch import WatchSlot

log = logging.getLogger("cq.follower")


class HasVersion(Protocol):
    """A version of what is followed."""

    @property
    def version(self) -> int:
        """Its number, which grows."""
        ...


T = TypeVar("T", bound=HasVersion)
V = TypeVar("V")


class StoreFollower(Generic[T]):
    """The newest version of something, in memory, for all threads and tasks of a process: the base of followers.

    Create one for each process, after forking, and close it at the end; it is also a context manager. While
    the store cannot be read, `latest` stays the same, and the read is retried, at least every 10 s. In a forked child
    it is closed, and `problem` says so.

    Args:
        db: a database of either store.
        what: a noun for messages, such as `the cloud of queue 'words'`.
        every: seconds between two reads of the store, if no watch fires before.

    Attributes:
        latest: the newest version known to this process, None before the first.
        problem: why the store cannot be read now; empty if it can.
    """

    def __init__(self, db: Database, what: str, every: Span) -> None:
        self.latest: T | None = None
        self.problem = ""
        self._db, self._what, self._every = db, what, positive_seconds(every)
        self._lock = Lock()
        self._listeners: set[Callable[[], object]] = set()
        self._begun = self._done = 0  # reads of the store
        self._watch = WatchSlot()
        self._wake, self._closing, self._ended = runtime.event(), runtime.event(), runtime.event()
        _followers.add(self)
        runtime.start_thread(self._run, "cq-follower")

    _has_watch: ClassVar[bool]

    def _fetch(self, tr: Transaction) -> tuple[T | None, Void | None]:
        """Read a newer version than the latest, or None and a watch for one, if there is a watch."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, so that callers should not wait any more."""
        return self._closing.is_set()

    def wait(self, version: int = 0, timeout: Span | None = None) -> T | None:
        """Wait for another version, which is a newer one, and return it.

        Args:
            version: the caller's version; 0 without one. Versions in between may be skipped.
            timeout: None waits for ever.

        Returns:
            The version; None at the timeout, or once the follower is closed.
        """
        seconds = timeout_of(timeout)
        until = None if seconds is None else runtime.monotonic() + seconds
        changed = runtime.event()
        with self._listening(changed.set):
            known, read = self._known(version)
            while (found := self._newer(version, known, read)) is None and not self.is_closed:
                if not changed.wait(None if until is None else max(0.0, until - runtime.monotonic())):
                    break
                changed.clear()
            return found

    async def wait_async(self, version: int = 0, timeout: Span | None = None) -> T | None:
        """As `wait`, for asyncio."""
        import asyncio  # late: it is slow to import, and a caller that awaits has done so

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed, so no task awaits the event any more
                loop.call_soon_threadsafe(changed.set)

        with self._listening(notify), suppress(TimeoutError):
            known, read = self._known(version)
            async with asyncio.timeout(timeout_of(timeout)):
                while (found := self._newer(version, known, read)) is None and not self.is_closed:
                    await changed.wait()
                    changed.clear()
                return found
        return None

    def close(self, timeout: Span = 10.0) -> None:
        """Stop following, and end all waits. From any thread.

        Waits up to `timeout` seconds for a read of the store under way.
        """
        self._closing.set()
        self._wake.set()
        self._notify()
        self._ended.wait(span_of(timeout))

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

    def _known(self, version: int) -> tuple[T | None, int]:
        """The latest version if it is the caller's, and the number of the next read of the store.

        Requests that read if the latest version is older. None in place of the version without watches: then each read
        is another object, and the numbers do not begin again.
        """
        with self._lock:
            read, latest = self._begun + 1, self.latest  # a read that has begun may have seen an older state
        if latest is not None and latest.version < version:
            self._wake.set()
        is_known = self._has_watch and latest is not None and latest.version == version
        return latest if is_known else None, read

    def _newer(self, version: int, known: T | None, read: int) -> T | None:
        """The latest version if it is newer than `version`, or older as of the read number `read`.

        If it has the same number, it is another one if the follower had `known` before: the numbers have begun again.
        """
        with self._lock:
            found, is_sure = self.latest, self._done >= read
        if found is None or (found.version < version and not is_sure):
            return None
        return None if found.version == version and (known is None or found is known) else found

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
                is_newer = self._read()
            except BaseException as error:
                if not is_failure(error):
                    raise
                self._note(describe(error))
                failures += 1
                self._closing.wait(delay_after(failures))
            else:
                self._note("")
                failures = 0
                if not (is_newer and self._has_watch):  # otherwise the next read makes a watch
                    self._wake.wait(self._every)
            if self._watch.is_free and self._watch.failures:  # the next watch would fail as well, perhaps
                self._closing.wait(delay_after(self._watch.failures))
        self._watch.cancel()
        self._ended.set()

    def _read(self) -> bool:
        """Store a newer version, or watch for one; returns whether there was a newer one."""
        with self._lock:
            self._begun += 1
        found, watch = transact(self._db, self._fetch)
        if watch is not None:
            self._watch.hold(watch, self._wake.set, self._wake.set)
        with self._lock:
            self.latest = self.latest if found is None else found
            self._done = self._begun
        self._notify()
        return found is not None

    def _note(self, problem: str) -> None:
        if problem and not self.problem and not self.is_closed:
            log.warning("%s cannot be read: %s", self._what, problem)
        self.problem = problem

    def _forget(self) -> None:
        """Close it in a forked child, which has no thread that reads, and where others may have held the locks."""
        self._lock, self._listeners = Lock(), set()
        self._wake, self._closing, self._ended = runtime.event(), runtime.event(), runtime.event()
        self._closing.set()
        self._ended.set()
        self.problem = (
            "this follower was made before the process was forked: open the store and make it only afterwards"
        )


_followers: Final[WeakSet[StoreFollower[Any]]] = WeakSet()


def _after_fork() -> None:
    for follower in list(_followers):
        follower._forget()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class FollowedRead(Generic[V]):
    """What a read returned.

    Attributes:
        value: its result.
        version: greater than that of an earlier reading with another value: about its time in milliseconds.
        at: when it was read, in seconds since 1970.
    """

    value: V
    version: int
    at: float

    @property
    def age(self) -> float:
        """How many seconds ago it was read."""
        return max(0.0, runtime.time() - self.at)


class ReadFollower(StoreFollower[FollowedRead[V]], Generic[V]):
    """The result of any read, such as a window, a top or a series, in memory for all threads and tasks of a process.

    A page that many people load takes `latest`, and requests nothing of the store. Its `age` is at most about `every`
    seconds, unless the store cannot be read.

    Create one for each read and process, after forking, and close it at the end; it is also a context manager.

    Args:
        db: a database of either store.
        read: called in a transaction with its snapshot reads; returns a value that can be compared and is not changed.
        every: seconds between two reads.

    Attributes:
        latest: the newest reading, None before the first.
        problem: why the store cannot be read now; empty if it can.

    Raises:
        InvalidConfiguration: `every` is no positive duration.
    """

    _has_watch = False

    def __init__(self, db: Database, read: Callable[[TransactionRead], V], *, every: Span = 1.0) -> None:
        self._read_value = read
        super().__init__(db, getattr(read, "__qualname__", "a read"), every)

    def _fetch(self, tr: Transaction) -> tuple[FollowedRead[V], None]:
        at, latest, begun = runtime.time(), self.latest, runtime.monotonic()
        try:
            value = self._read_value(tr.snapshot)
        except Exception as error:
            if error_code(error) == TRANSACTION_TOO_OLD and (late := outlived(begun)):
                # The store would have it tried again for ever, without an error.
                raise TimeoutError(f"it {late}: read less") from error
            raise
        if latest is not None and latest.value == value:
            return FollowedRead(value, latest.version, at), None
        return FollowedRead(value, max(round(1000 * at), latest.version + 1 if latest else 1), at), None
