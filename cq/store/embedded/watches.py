"""Watches: telling a transaction's owner that a key has another value than the transaction saw.

One thread serves all watches of a database, and exists only while there are some. It is woken by every commit of any
process (see `lockfile`), reads from the log of commits which keys were written since, and compares the values of
those that are watched. Commits that follow each other fast are looked at together.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .conflicts import decode
from .error import OPERATION_CANCELLED, FDBError
from .future import FutureVoid
from .lockfile import Listener

MAX_WATCHES = 10_000
_CHECK_SECONDS = 1.0
_LINGER_CHECKS = 5
_PAUSE_SECONDS = 0.001


class Watch(FutureVoid):
    """Ready when the key has got another value. Dropping it ends the watch, unless it has a callback."""

    __slots__ = ("active", "key", "value", "watches")

    def __init__(self, watches: Watches, key: bytes, value: bytes | None) -> None:
        super().__init__()
        self.watches = watches
        self.key = key
        self.value = value
        self.active = False

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self.watches.pinned.add(self)
        super().on_ready(callback)

    def settle(self, result: None = None, error: BaseException | None = None) -> bool:
        settled = super().settle(result, error)
        if settled:
            self.watches.pinned.discard(self)
        return settled

    def compare(self, value: bytes | None) -> None:
        """Fire if this is another value."""
        if value != self.value:
            self.settle()


class Watches:
    """The watches of one database."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self.pinned: set[Watch] = set()
        self.limit = MAX_WATCHES
        self._connect = connect
        self._path = path
        self._lock = threading.Lock()
        self._new: list[weakref.ref[Watch]] = []
        self._by_key: dict[bytes, list[weakref.ref[Watch]]] = {}
        self._listener: Listener | None = None
        self._closed = False
        self._seen = 0

    def full(self) -> bool:
        return len(self._by_key) + len(self._new) >= self.limit

    def add(self, watches: Iterable[Watch]) -> None:
        """Begin to watch; a key that has changed already since its value was read fires as well."""
        with self._lock:
            if self._closed:
                return
            self._new += map(weakref.ref, watches)
            if self._listener is None:
                self._listener = Listener(self._path)
                threading.Thread(target=self._serve, name="cq-watches", daemon=True).start()
            self._listener.wake()

    def close(self) -> None:
        """End all watches with the error 1101."""
        with self._lock:
            self._closed = True
            if self._listener is not None:
                self._listener.wake()
        for watch in self._live():
            watch.settle(error=FDBError(OPERATION_CANCELLED))

    def _live(self) -> list[Watch]:
        references = [*self._new, *(ref for refs in list(self._by_key.values()) for ref in refs)]
        return [watch for ref in references if (watch := ref()) is not None]

    # The thread

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101 - set before the thread starts
        try:
            with contextlib.closing(self._connect()) as connection:
                while self._look(connection, listener):
                    time.sleep(_PAUSE_SECONDS)
        finally:
            listener.close()

    def _look(self, connection: sqlite3.Connection, listener: Listener) -> bool:
        """One round; False when the thread is not needed any more."""
        for _ in range(_LINGER_CHECKS):
            listener.wait(_CHECK_SECONDS)
            if self._closed:
                return False
            self._check(connection)
            if self._by_key:
                return True
        with self._lock:
            if self._new:
                return True
            self._listener = None
            return False

    def _check(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            new, self._new = self._new, []
        connection.execute("BEGIN")
        try:
            oldest, last = connection.execute("SELECT min(version), max(version) FROM commits").fetchone()
            for ref in new:
                if (watch := ref()) is not None:
                    self._by_key.setdefault(watch.key, []).append(ref)
            keys = {watch.key for ref in new if (watch := ref()) is not None}
            if last != self._seen:
                keys |= self._written(connection) if oldest <= self._seen else self._by_key.keys()
            for key in keys:
                self._compare(connection, key)
            self._seen = last
        finally:
            connection.execute("COMMIT")
        self._sweep()

    def _written(self, connection: sqlite3.Connection) -> set[bytes]:
        """The watched keys that have been written since the last look."""
        written: set[bytes] = set()
        watched = self._by_key.keys()
        rows = connection.execute("SELECT writes FROM commits WHERE version > ?", (self._seen,))
        for (row,) in rows:
            keys, ranges = decode(row)
            written.update(watched & keys if len(keys) < len(watched) else watched & set(keys))
            for begin, end in ranges:
                written.update(key for key in watched if begin <= key < end)
        return written

    def _compare(self, connection: sqlite3.Connection, key: bytes) -> None:
        row = connection.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        for ref in self._by_key.get(key, ()):
            if (watch := ref()) is not None:
                watch.compare(row[0] if row else None)

    def _sweep(self) -> None:
        """Forget watches that have fired or that nobody holds any more."""
        for key, refs in list(self._by_key.items()):
            left = [ref for ref in refs if (watch := ref()) is not None and not watch.is_ready()]
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]
