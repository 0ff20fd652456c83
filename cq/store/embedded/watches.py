"""Watches: futures that become ready when a key has another value than the transaction saw.

One thread serves all watches of a database, and runs only while there are watches. Every commit of any process wakes it
(see `lock_file`). It reads the keys written since its last round from the log of commits, and compares the values of
the watched ones. Commits in quick succession are handled in one round.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakSet

import apsw

from cq.errors import StoreError
from cq.store.embedded.conflict_log import CommittedGroup
from cq.store.embedded.error import IO_ERROR, OPERATION_CANCELLED, PLATFORM_ERROR, STORAGE_ERRORS, FDBError
from cq.store.embedded.future import FutureVoid
from cq.store.embedded.lock_file import Listener

MAX_WATCHES = 10_000
_CHECK_SECONDS = 1.0
_MAX_IDLE_CHECKS = 5
_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.008
"""The pause between two rounds grows up to this, while commits concern no watched key."""


class Watch(FutureVoid):
    """Ready when the key has another value. Dropping the future ends the watch, unless it has a callback."""

    __slots__ = ("key", "value", "watches")

    def __init__(self, watches: Watches, key: bytes, value: bytes | None) -> None:
        super().__init__()
        self.watches = watches
        self.key = key
        self.value = value

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """See `Future.on_ready`. With a callback, the watch lives until it fires, even without other references."""
        self.watches.pinned.add(self)
        super().on_ready(callback)

    def settle(self, result: None = None, error: BaseException | None = None) -> bool:
        """See `Future.settle`."""
        settled = super().settle(result, error)
        self.watches.pinned.discard(self)
        return settled

    def compare(self, value: bytes | None) -> None:
        """Fire if `value` is not the watched value."""
        if value != self.value:
            self.settle()


class Watches:
    """The watches of one database. Only the watch thread uses `_by_key`."""

    def __init__(self, connect: Callable[[], apsw.Connection], path: Path) -> None:
        self.pinned: set[Watch] = set()
        self.limit = MAX_WATCHES
        self._connect = connect
        self._path = path
        self._lock = threading.Lock()
        self._new: list[Watch] = []
        self._by_key: dict[bytes, WeakSet[Watch]] = {}
        self._number = 0
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._seen_version = 0
        self._next_sweep = 0.0
        self._pause = _PAUSE_SECONDS

    def full(self) -> bool:
        """Whether the limit of watches is reached."""
        return self._number + len(self._new) >= self.limit

    def add(self, watches: Iterable[Watch]) -> None:
        """Start watches; a watch whose key has changed since it was read fires, too."""
        watches = list(watches)
        with self._lock:
            try:
                if self._listener is None and not self._closed:
                    self._start()
            except OSError:
                # Out of file descriptors or threads. The commit of these watches has succeeded and must not fail.
                _fail(watches, PLATFORM_ERROR)
            if self._closed:
                _fail(watches, OPERATION_CANCELLED)
            elif self._listener is not None:
                self._new += watches
                self._listener.wake()

    def close(self) -> None:
        """Fail all watches with 1101."""
        with self._lock:
            self._closed = True
            if self._listener is not None:
                self._listener.wake()
            new, self._new = self._new, []
            thread = self._thread
        _fail(new, OPERATION_CANCELLED)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        listener = Listener(self._path)
        thread = threading.Thread(target=self._serve, args=(listener,), name="cq-watches", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            listener.close()
            raise OSError(str(error)) from error
        self._listener, self._thread = listener, thread

    # The thread

    def _serve(self, listener: Listener) -> None:
        code = IO_ERROR
        try:
            with (
                self._lock
            ):  # until `_start` has ended; after ^C in it, the thread of a later one serves the watches
                is_needed = self._listener is listener
            with contextlib.closing(self._connect()) as connection:
                while is_needed and self._serve_round(connection, listener):
                    time.sleep(self._pause)
            code = OPERATION_CANCELLED
        except (*STORAGE_ERRORS, StoreError, OSError):
            pass  # the watches fail with `IO_ERROR`
        finally:
            left: list[Watch] = []
            with self._lock:  # `close` and `add` may call `wake` on the listener
                if self._listener is listener:  # else a new thread serves the watches already
                    left = [*chain.from_iterable(self._by_key.values()), *self._new]
                    self._listener, self._by_key, self._number, self._new = None, {}, 0, []
                listener.close()
            _fail(left, code)

    def _serve_round(self, connection: apsw.Connection, listener: Listener) -> bool:
        """Wait for commits and check the watches; return False when the thread is no longer needed."""
        for _ in range(_MAX_IDLE_CHECKS):
            listener.wait(_CHECK_SECONDS)
            if self._closed:
                return False
            # A commit that is only announced yet notifies again: a pause now would delay what it fires.
            if self._check(connection) and self._by_key:
                return True
        with self._lock:
            if self._new or self._by_key:
                return True
            self._listener = None
            return False

    def _check(self, connection: apsw.Connection) -> bool:
        """Check the watches; return whether there was a new commit or a new watch."""
        with self._lock:
            new, self._new = self._new, []
            self._number += len(new)
        keys = {watch.key for watch in new}
        while new:  # first: if a statement below fails, these watches must fail as well
            watch = new.pop()
            self._by_key.setdefault(watch.key, WeakSet()).add(watch)
        connection.execute("BEGIN")
        try:
            oldest, last = connection.execute("SELECT min(version), max(version) FROM commits").get
            is_new = bool(keys) or last != self._seen_version
            if last != self._seen_version:
                keys |= self._written(connection) if oldest <= self._seen_version else self._by_key.keys()
            for key in keys:
                self._compare(connection, key)
            if is_new:
                self._pause = _PAUSE_SECONDS if keys else min(2 * self._pause, _MAX_PAUSE_SECONDS)
            self._seen_version = last
        finally:
            connection.execute("COMMIT")
        self._sweep()
        return is_new

    def _written(self, connection: apsw.Connection) -> set[bytes]:
        """The watched keys written since the last round."""
        watched = self._by_key.keys()
        rows = connection.execute(
            "SELECT version, writes FROM commits WHERE version > ?", (self._seen_version,)
        )
        return set().union(*(CommittedGroup.from_row(*row).written_keys(watched) for row in rows))

    def _compare(self, connection: apsw.Connection, key: bytes) -> None:
        row = connection.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        for watch in list(self._by_key.get(key, ())):
            watch.compare(row[0] if row else None)
        self._drop_finished(key)

    def _sweep(self) -> None:
        """About once a second, remove the dropped watches."""
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _CHECK_SECONDS
            for key in list(self._by_key):
                self._drop_finished(key)
            self._number = sum(map(len, self._by_key.values()))

    def _drop_finished(self, key: bytes) -> None:
        left = [watch for watch in self._by_key[key] if not watch.is_ready()]
        if left:
            self._by_key[key] = WeakSet(left)
        else:
            del self._by_key[key]


def _fail(watches: Iterable[Watch], code: int) -> None:
    for watch in watches:
        watch.settle(error=FDBError(code))
