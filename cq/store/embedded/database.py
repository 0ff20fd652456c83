"""Databases: one file, opened. The methods are the binding's, and `close`."""

from __future__ import annotations

import functools
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cq.errors import StoreError
from cq.store.embedded.binding.error import FDBError
from cq.store.embedded.binding.future import FutureVoid, Value
from cq.store.embedded.binding.keys import KeySelector, KeyValue
from cq.store.embedded.client.range import WANT_ALL
from cq.store.embedded.engine.committer import WAIT_SECONDS, Committer
from cq.store.embedded.engine.wal import pressing
from cq.store.embedded.engine.watches import Watches
from cq.store.embedded.file import access, file, handles
from cq.store.embedded.file.access import Access
from cq.store.embedded.file.lock_file import LockFile
from cq.store.embedded.operations import AtomicOperations
from cq.store.embedded.options import DatabaseOptions, Settings
from cq.store.embedded.snapshots.latest_version import Latest
from cq.store.embedded.snapshots.snapshots import Glance, Pool, Snapshot, leak
from cq.store.embedded.transaction import Transaction

T = TypeVar("T")


class Database(AtomicOperations):
    """A store in one file, made if it is not there yet. Any number of threads and processes may use it.

    Without `create`, a path without a store raises `NotAStore`.

    With `power_safe`, a commit that has returned survives a power failure; without, it survives only the end of the
    process, however sudden, and commits are several times as fast.

    `mode` is the permissions of a new store: 0o600, for its owner alone, without this. The files beside it have the
    permissions of the store, so `chmod` shares an existing one.

    Nothing of it survives a fork: start processes with spawn, or open the store after forking.

    Raises:
        NotAStore: the file is something else, damaged, or of a newer format; it is left as it is.
        StoreError: it cannot be read or written: its disk is full or fails, or another process keeps it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        power_safe: bool = True,
        mode: int = access.PRIVATE,
        create: bool = True,
    ) -> None:
        self._unusable: str | None = "the store could not be opened"
        # One name for one file: the lock beside it must be the same for everybody.
        self.path = Path(path).resolve()
        self.defaults: dict[str, Callable[[Settings], None]] = {}
        self.snapshot_ryw = 1
        self.bypass_unreadable = False
        self.protect_commit = True
        with handles.lock:
            self._open(functools.partial(file.connect, self.path, power_safe=power_safe), mode, create)

    def _open(self, connect: Callable[..., sqlite3.Connection], mode: int, create: bool) -> None:
        exists = file.check(self.path, creates=create)
        rights = access.existing(self.path) if exists else access.new(mode)
        self._lock = LockFile(self.path, rights)
        try:
            if not exists:
                self._create(rights)
            self._file_id = file.identify(self.path)
            self._connection = file.connect_first(self.path, connect)
        except BaseException:
            self._lock.close()
            raise
        log = self.path.with_name(f"{self.path.name}-wal")
        latest = Latest(self._lock)
        self._pool = Pool(connect, functools.partial(pressing, log), self.path, latest)
        self.committer = Committer(self._connection, self._lock, latest)
        self.watches = Watches(connect, self._lock.path)
        handles.acquire(self._file_id, self)
        self._unusable = None

    def _create(self, rights: Access) -> None:
        with self._lock.held(WAIT_SECONDS) as is_held:
            if not is_held:
                raise StoreError(self._lock.obstacle())
            # Another process may have made it while this one waited for the lock.
            if not file.check(self.path):
                file.create(self.path, rights)

    # Transactions

    @property
    def options(self) -> DatabaseOptions:
        """Defaults for the transactions created from now on."""
        return DatabaseOptions(self)

    def create_transaction(self) -> Transaction:
        """A new transaction. It holds nothing of the file before its first read."""
        self.check_usable()
        return Transaction(self)

    def transact(self, function: Callable[[Transaction], T]) -> T:
        """Call `function(tr)` and commit, as often as needed; the result of the call that was committed."""
        tr = self.create_transaction()
        while True:
            try:
                result = function(tr)
                tr.commit().wait()
            except FDBError as error:
                tr.on_error(error).wait()
            else:
                return result

    def close(self) -> None:
        """Let commits under way finish and close the file. Watches get 1101, everything else an error."""
        if self._unusable is not None:
            return
        self._unusable = "the store is closed: open it again"
        self.watches.close()
        self._pool.close()
        self.committer.close()
        self._lock.close()
        handles.release(self._file_id)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then daemon threads are frozen, perhaps with a lock that closing needs
            self.close()

    # One transaction each

    def get(self, key: Any) -> bytes | None:
        """The value of a key, or None."""
        return self.transact(lambda tr: tr.get(key).value)

    def get_key(self, key_selector: KeySelector) -> bytes:
        """The key that a selector stands for."""
        return self.transact(lambda tr: tr.get_key(key_selector).value)

    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = WANT_ALL
    ) -> list[KeyValue]:
        """The rows of a range, all at once."""
        return self.transact(lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list())

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> list[KeyValue]:
        """The rows whose keys begin with `prefix`."""
        return self.transact(lambda tr: tr.get_range_startswith(prefix, *args, **kwargs).to_list())

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        self.transact(lambda tr: tr.set(key, value))

    def clear(self, key: Any) -> None:
        """Clear a key."""
        self.transact(lambda tr: tr.clear(key))

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys from `begin` to before `end`."""
        self.transact(lambda tr: tr.clear_range(begin, end))

    def clear_range_startswith(self, prefix: Any) -> None:
        """Clear the keys that begin with `prefix`."""
        self.transact(lambda tr: tr.clear_range_startswith(prefix))

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self.transact(lambda tr: tr._atomic_operation(opcode, key, param))

    def get_and_watch(self, key: Any) -> tuple[Value, FutureVoid]:
        """The value of a key, as `tr.get` returns it, and a future that is ready when it has another one."""
        return self.transact(lambda tr: (tr.get(key), tr.watch(key)))

    def set_and_watch(self, key: Any, value: Any) -> FutureVoid:
        """Set a key; a future that is ready when it has another value."""

        def run(tr: Transaction) -> FutureVoid:
            tr.set(key, value)
            return tr.watch(key)

        return self.transact(run)

    def clear_and_watch(self, key: Any) -> FutureVoid:
        """Clear a key; a future that is ready when it has a value again."""

        def run(tr: Transaction) -> FutureVoid:
            tr.clear(key)
            return tr.watch(key)

        return self.transact(run)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    # For transactions

    def snapshot(self) -> Snapshot:
        """The latest version, for reading."""
        self.check_usable()
        return self._pool.snapshot()

    def glance(self) -> Glance:
        """The latest version and the metadata version, for a transaction that may need nothing else."""
        if self._unusable is not None:
            self.check_usable()
        return self._pool.glance()

    def check_usable(self) -> None:
        """Raise if the store is closed, or was opened by the parent process."""
        if self._unusable is not None:
            raise StoreError(self._unusable)

    def abandon(self) -> None:
        """In a forked child: never touch the file again, not even to close it."""
        self._unusable = handles.FORKED
        self._pool.leak()
        leak(self._connection)
        self._lock.abandon()
