"""Protocols of databases and transactions: the methods of the official Python binding that cq uses.

An `fdb.Database` and the embedded store satisfy these protocols; cq uses no other methods of them. A few methods are
for applications only, which annotate their functions with `cq.Transaction`, `cq.Snapshot` and `cq.Database`. The
semantics are FoundationDB's: futures raise when they are waited for, not when they are created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from cq import runtime

METADATA_VERSION = b"\xff/metadataVersion"
"""The key whose value a client receives with its read version; see `cq.config.queue`."""

WANT_ALL = -2
"""The binding's `StreamingMode.want_all`: transfer the whole range as early as possible."""

VERSIONS_PER_SECOND = 1_000_000
"""Versions advance by about a million a second, on FoundationDB and on the embedded store."""

LIFETIME_SECONDS = 5.0
"""How long a transaction lives. An older one can neither read nor commit."""

ACCESSED_UNREADABLE = 1036
"""The error code of a read that needs the version of its own transaction's commit."""
TRANSACTION_TOO_OLD = 1007
NOT_COMMITTED = 1020
COMMIT_UNKNOWN_RESULT = 1021
TRANSACTION_TIMED_OUT = 1031
TRANSACTION_TOO_LARGE = 2101
_REFUSED_COMMITS = frozenset(
    (TRANSACTION_TOO_OLD, NOT_COMMITTED, 1009, 1037, 1038, 1042, 1051, 1078, 1213, 1223)
)
"""After these the store has not committed and never will (`RETRYABLE_NOT_COMMITTED` of FoundationDB's C API)."""


class Value(Protocol):
    """A future of a value: `.value` waits; it is None if the key is absent."""

    @property
    def value(self) -> bytes | None: ...
    def present(self) -> bool: ...
    def wait(self) -> Any: ...


class Key(Protocol):
    """A future of a key or a versionstamp: `.value` waits for the bytes."""

    @property
    def value(self) -> bytes: ...
    def wait(self) -> Any: ...


class Int(Protocol):
    """A future of an int, which `.wait()` returns."""

    def wait(self) -> int: ...


class Void(Protocol):
    """A future of an event: a commit, a watch, a retry delay."""

    def wait(self) -> None: ...
    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...
    def cancel(self) -> None: ...


class KeyValue(Protocol):
    """One row of a range."""

    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...


class Range(Protocol):
    """A range read whose first piece is requested; the iteration reads the others as needed."""

    def __iter__(self) -> Iterator[KeyValue]: ...
    def to_list(self) -> list[Any]: ...


class TransactionRead(Protocol):
    """Reads. The reads of a transaction add read conflict ranges, those of its `.snapshot` do not."""

    @property
    def db(self) -> Any: ...
    def get(self, key: bytes) -> Value: ...
    def __getitem__(self, key: Any) -> Any: ...
    def get_key(self, key_selector: Any) -> Key: ...
    def get_range_startswith(self, prefix: bytes) -> Range: ...
    def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = ...
    ) -> Range: ...
    def get_read_version(self) -> Int: ...
    def get_estimated_range_size_bytes(self, begin_key: bytes, end_key: bytes) -> Int: ...


class Writer(Protocol):
    """The writes of a transaction that do not depend on its reads; an object that collects writes has them, too."""

    def set(self, key: bytes, value: bytes) -> None: ...
    def clear(self, key: bytes) -> None: ...
    def clear_range(self, begin: bytes, end: bytes) -> None: ...
    def set_versionstamped_key(self, key: bytes, param: bytes) -> None: ...
    def add(self, key: bytes, param: bytes) -> None: ...
    def byte_max(self, key: bytes, param: bytes) -> None: ...
    def compare_and_clear(self, key: bytes, param: bytes) -> None: ...


class Transaction(TransactionRead, Writer, Protocol):
    """A transaction of either store."""

    @property
    def options(self) -> Any: ...
    @property
    def snapshot(self) -> TransactionRead: ...
    def clear_range_startswith(self, prefix: bytes) -> None: ...
    def __setitem__(self, key: bytes, value: bytes) -> None: ...
    def __delitem__(self, key: Any) -> None: ...
    def set_versionstamped_value(self, key: bytes, param: bytes) -> None: ...
    def max(self, key: bytes, param: bytes) -> None: ...
    def min(self, key: bytes, param: bytes) -> None: ...
    def byte_min(self, key: bytes, param: bytes) -> None: ...
    def bit_and(self, key: bytes, param: bytes) -> None: ...
    def bit_or(self, key: bytes, param: bytes) -> None: ...
    def bit_xor(self, key: bytes, param: bytes) -> None: ...
    def add_read_conflict_key(self, key: bytes) -> None: ...
    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None: ...
    def add_write_conflict_key(self, key: bytes) -> None: ...
    def watch(self, key: bytes) -> Void: ...
    def get_approximate_size(self) -> Int: ...
    def get_versionstamp(self) -> Key: ...
    def get_committed_version(self) -> int: ...
    def commit(self) -> Void: ...
    def on_error(self, error: Any) -> Void: ...
    def reset(self) -> None: ...
    def cancel(self) -> None: ...


class Database(Protocol):
    """A database of either store."""

    @property
    def options(self) -> Any: ...
    def create_transaction(self) -> Any: ...


def is_local(db: object) -> bool:
    """Whether a database is a local file: then reads and read versions are no requests."""
    return bool(getattr(db, "is_local", False))


def may_have_committed(code: int | None) -> bool:
    """Whether a commit with this error may have happened, or may happen later; None: not an error of the store."""
    # Raised by the client before it sends the commit.
    is_clients_own = code is not None and 2000 <= code < 3000
    return not is_clients_own and code not in _REFUSED_COMMITS


def outlived(begun: float) -> str:
    """A message if more time has passed since `begun`, by `runtime.monotonic`, than a transaction lives; else empty.

    >>> outlived(runtime.monotonic()), outlived(runtime.monotonic() - 6)
    ('', 'took 6.0 s, and a transaction lives 5 s')
    """
    seconds = runtime.monotonic() - begun
    if seconds <= LIFETIME_SECONDS:
        return ""
    return f"took {seconds:.1f} s, and a transaction lives {LIFETIME_SECONDS:.0f} s"


def error_code(error: BaseException) -> int | None:
    """The FoundationDB error code of an `FDBError` of either store; None for any other exception."""
    code = getattr(error, "code", None)
    return code if type(error).__name__ == "FDBError" and isinstance(code, int) else None


def seconds_since(version: int, now: int) -> float:
    """The seconds from a version to a later one, computed from the versions alone; 0 if it is not later."""
    return max(0, now - version) / VERSIONS_PER_SECOND
