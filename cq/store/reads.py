"""The reads of a transaction: those of its snapshot, and what a write-only transaction refuses."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from cq.store.api import Transaction, TransactionRead

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
