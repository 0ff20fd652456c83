"""The reads of a transaction: those of its snapshot, what a write-only transaction refuses, and earlier reads.

Each transaction of a cluster begins with a request for a read version. A read that may be a second old can begin at a
version that an earlier read of the process has requested, and then only requests its data: see `read_earlier`. In an
embedded store, a version costs nothing, so each read is of the present.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from cq import runtime
from cq.durations import Span, span_of
from cq.errors import InvalidConfiguration
from cq.store.api import Database, Transaction, TransactionRead, error_code, is_local
from cq.store.mistakes import refuse_unless_database

T = TypeVar("T")

_READS: Final = frozenset(
    (
        *("get", "get_key", "get_range", "get_range_startswith", "get_range_split_points"),
        *("get_estimated_range_size_bytes", "get_read_version", "watch", "__getitem__"),
    )
)
# What an add knows of the configuration is that of the version at which the transaction has begun.
_BEGINNINGS: Final = frozenset(("set_read_version", "reset", "on_error"))


def snapshot_of(tr: TransactionRead) -> TransactionRead:
    """The snapshot reads of a transaction, or `tr` itself if it is a `.snapshot`."""
    snapshot: TransactionRead = getattr(tr, "snapshot", tr)
    return snapshot


def own_snapshot(tr: TransactionRead) -> TransactionRead:
    """Same as `snapshot_of`, but never refused: an add of a write-only transaction reads the configuration, too."""
    if type(tr) is WriteOnly:
        return tr.snapshot.inner
    return snapshot_of(tr)


class RefusedReads:
    """The snapshot of a write-only transaction, as its function sees it."""

    __slots__ = ("inner",)

    def __init__(self, inner: TransactionRead) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return _refuse if name in _READS else getattr(self.inner, name)

    def __getitem__(self, key: Any) -> NoReturn:
        _refuse()


class WriteOnly:
    """A transaction with all its methods, except that reads, watches and another beginning raise `TypeError`.

    Args:
        tr: a transaction of either store.
    """

    def __init__(self, tr: Transaction) -> None:
        self.inner = tr
        self.db = tr.db
        self.snapshot = RefusedReads(tr.snapshot)
        # An add calls these for each of its rows.
        self.set_versionstamped_key = tr.set_versionstamped_key
        self.set_versionstamped_value = tr.set_versionstamped_value

    def __getattr__(self, name: str) -> Any:
        if name in _BEGINNINGS:
            return _refuse_beginning
        return _refuse if name in _READS else getattr(self.inner, name)

    def __getitem__(self, key: Any) -> NoReturn:
        _refuse()

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.inner[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.inner[key]


class ReadOnly:
    """A transaction with its reads; each write, watch and commit raises `TypeError`.

    Args:
        tr: a transaction of either store.
    """

    def __init__(self, tr: Transaction) -> None:
        self.inner = tr
        self.db = tr.db
        self.snapshot = tr.snapshot
        self.get = tr.get

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return _refuse_write if callable(found) and (name not in _READS or name == "watch") else found

    def __getitem__(self, key: Any) -> Any:
        return self.inner[key]

    def __setitem__(self, key: bytes, value: bytes) -> NoReturn:
        _refuse_write()

    def __delitem__(self, key: Any) -> NoReturn:
        _refuse_write()


def _refuse_write(*_: object, **__: object) -> NoReturn:
    raise TypeError("a read of an earlier version cannot write: use `cq.transact` for a function that writes")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "a write-only transaction cannot read: it may begin at a version up to a second old; "
        "leave out `write_only` for a function that reads"
    )


def _refuse_beginning(*_: object) -> NoReturn:
    raise TypeError(
        "a write-only transaction keeps the version at which it began: leave out `write_only` for a function that "
        "calls `set_read_version`, `reset` or `on_error`"
    )


MAX_AGE: Final = 4.0
"""A cluster keeps versions for 5 seconds, and the read itself takes some time."""

_versions: WeakKeyDictionary[Any, tuple[int, float]] = WeakKeyDictionary()
"""{database: (a read version, when it was requested)}."""


def read_earlier(db: Database, fn: Callable[[Transaction], T], *, max_age: Span) -> T:
    """Return what `fn(tr)` returns, which only reads, at a version that is at most `max_age` old.

    Pages that many people load save one of two requests to a cluster with it. It may run `fn` several times, as
    `cq.transact`. It does not see all commits that have returned before: use it for what may be late, and not for what
    the same person has just written.

    Args:
        db: a database of either store. An embedded one is read as it is at present.
        fn: a function of a transaction that only reads.
        max_age: 0 to 4 seconds.

    Raises:
        TypeError: `fn` writes, or sets a watch.
        InvalidConfiguration: the age is out of range.
        Exception: an error of the function, or of `cq.transact`.
    """
    seconds = span_of(max_age)
    if not 0 <= seconds <= MAX_AGE:
        raise InvalidConfiguration(f"expected an age of 0 to {MAX_AGE:g} seconds, got: {max_age!r}")
    try:
        tr = db.create_transaction()
    except AttributeError:
        refuse_unless_database(db)
        raise
    reading: Callable[[Any], T] = fn  # it has all methods by `__getattr__`
    while True:
        _begin(db, tr, seconds)
        try:
            return reading(ReadOnly(tr))
        except Exception as error:
            if error_code(error) is None:
                raise
            _versions.pop(db, None)  # too old, or of a cluster that has recovered
            tr.on_error(error_code(error)).wait()


def _begin(db: Database, tr: Any, max_age: float) -> None:
    """Set the read version of a transaction, or note the one that it requests."""
    if is_local(db):
        return
    now = runtime.monotonic()
    version, requested = _versions.get(db, (0, 0.0))
    if version and now - requested <= max_age:
        tr.set_read_version(version)
    elif max_age:
        # Not before it has come, so no read of another thread begins at a version that was requested later.
        _versions[db] = (tr.get_read_version().wait(), now)
