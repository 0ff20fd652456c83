"""The database class of the embedded store, with the binding's methods and `close`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from cq.store.api import WANT_ALL
from cq.store.embedded.engine import Engine, open_file
from cq.store.embedded.file import PRIVATE, made_at
from cq.store.embedded.future import FutureVoid, Value
from cq.store.embedded.keys import KeySelector, KeyValue
from cq.store.embedded.state import Settings, in_range
from cq.store.embedded.transaction import Operations, Transaction, ignored
from cq.store.transact import transact

T = TypeVar("T")


_DATABASE_NAMES = (
    "location_cache_size machine_id datacenter_id transaction_logging_max_field_length "
    "transaction_causal_read_risky transaction_include_port_in_address transaction_automatic_idempotency "
    "transaction_report_conflicting_keys test_causal_read_risky"
)
# A database has them as defaults for its transactions, whose options have no `transaction_` in their names.
_DEFAULT_NAMES = (
    "transaction_timeout transaction_retry_limit transaction_max_retry_delay transaction_size_limit "
    "snapshot_ryw_enable snapshot_ryw_disable transaction_bypass_unreadable "
    "transaction_used_during_commit_protection_disable"
)


class DatabaseOptions:
    """`db.options`: defaults for transactions created from now on. A bad value raises at once."""

    __slots__ = ("_defaults", "_engine")

    def __init__(self, defaults: Settings, engine: Engine) -> None:
        self._defaults = defaults
        self._engine = engine

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.removeprefix("set_") in _DEFAULT_NAMES.split():
            method: Callable[..., None] = getattr(self._defaults, name.replace("transaction_", ""))
            return method
        return ignored(_DATABASE_NAMES, name)

    def set_max_watches(self, number: int) -> None:
        """The maximum number of watches, by default 10,000; further ones fail with 1032."""
        self._engine.watches.limit = in_range(number, 0)


class Database(Operations):
    """A store in one file, created if it does not exist. Any number of threads and processes may use it.

    Without `create`, a path without a store raises `NotAStore`.

    With `power_safe`, a returned commit survives a power failure. Without it, a commit survives a crash of the process
    only, and commits are several times as fast.

    `mode` is the permissions of a new store, by default 0o600: for its owner only. The files beside it get the
    permissions of the store, so `chmod` shares an existing store.

    A database cannot be used after a fork: start processes with spawn, or open the store after forking.

    Raises:
        NotAStore: the file is not a store, damaged, or of a newer format; it is not modified.
        StoreError: it cannot be read or written: its disk is full or fails, or another process locks it.
    """

    is_local: Final = True  # see `cq.store.api.is_local`

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        power_safe: bool = True,
        mode: int = PRIVATE,
        create: bool = True,
    ) -> None:
        opening = functools.partial(open_file, power_safe=power_safe, mode=mode, create=create)
        self._defaults, self._engine = Settings(), Engine(path, opening)

    @property
    def path(self) -> Path:
        """The absolute path of the file, with symbolic links resolved."""
        return self._engine.path

    @property
    def copied_at(self) -> float | None:
        """When the copy that it reads was begun, in seconds since 1970; None if it is no copy."""
        return made_at(self.path)

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write a copy of the store, while it is in use; see `cq.store.make_copy`."""
        self._engine.copy_to(Path(path))

    # Transactions

    @property
    def options(self) -> DatabaseOptions:
        """Defaults for the transactions created from now on."""
        return DatabaseOptions(self._defaults, self._engine)

    def create_transaction(self) -> Transaction:
        """A new transaction. It opens no snapshot before its first read."""
        self._engine.check_usable()
        return Transaction(self, self._engine, self._defaults)

    def transact(self, function: Callable[[Transaction], T], *, write_only: bool = False) -> T:
        """Call `function(tr)` and commit, with retries; return the result of the committed call.

        `write_only` is that of `cq.store.transact.transact`.
        """
        run: Callable[[Any], T] = function  # this store's transaction has more methods than the protocol
        return transact(self, run, write_only=write_only)

    def close(self) -> None:
        """Finish the running commits and close the file. Watches fail with 1101, later calls with `StoreError`."""
        self._engine.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Single operations, each in its own transaction

    def get(self, key: Any) -> bytes | None:
        """The value of a key, or None."""
        return self.transact(lambda tr: tr.get(key).value)

    def get_key(self, key_selector: KeySelector) -> bytes:
        """The key that a selector resolves to."""
        return self.transact(lambda tr: tr.get_key(key_selector).value)

    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = WANT_ALL
    ) -> list[KeyValue]:
        """The rows of a range, all at once."""
        return self.transact(lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list())

    def set(self, key: Any, value: Any) -> None:
        """Set a key."""
        self.transact(lambda tr: tr.set(key, value))

    def clear(self, key: Any) -> None:
        """Clear a key."""
        self.transact(lambda tr: tr.clear(key))

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys from `begin` to before `end`."""
        self.transact(lambda tr: tr.clear_range(begin, end))

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self.transact(lambda tr: tr._atomic_operation(opcode, key, param))

    def get_and_watch(self, key: Any) -> tuple[Value, FutureVoid]:
        """The value of a key, as from `tr.get`, and a future that becomes ready when the value changes."""
        return self.transact(lambda tr: (tr.get(key), tr.watch(key)))

    def set_and_watch(self, key: Any, value: Any) -> FutureVoid:
        """Set a key; return a future that becomes ready when the value changes."""

        def run(tr: Transaction) -> FutureVoid:
            tr.set(key, value)
            return tr.watch(key)

        return self.transact(run)

    def clear_and_watch(self, key: Any) -> FutureVoid:
        """Clear a key; return a future that becomes ready when the key has a value."""

        def run(tr: Transaction) -> FutureVoid:
            tr.clear(key)
            return tr.watch(key)

        return self.transact(run)
