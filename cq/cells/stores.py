"""The stores of cells: opened on first use, and verified to be the cells that the directory names."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from cq import store
from cq.cells.directory import Directory
from cq.cells.records import HERE, Fence, Identity
from cq.config.store_id import ensure_store_id
from cq.errors import CellMismatch, NotAStore
from cq.keys import cell as keys
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact


class Opener(Protocol):
    """Opens the store of a URL, as `cq.open`; creates it only if `create` is true."""

    def __call__(self, url: str, /, *, create: bool) -> Database: ...


class CellStores:
    """The stores of a directory's cells, by the cells' names; for any thread.

    Only `claim` creates a store, for the operator who names its URL. The URLs in the directory may come from another
    user: to read them must not create files with the rights of the reader.

    Args:
        directory: the directory of the cells.
        opener: opens the store of a URL.
    """

    def __init__(self, directory: Directory, opener: Opener) -> None:
        self._directory = directory
        self._opener = opener
        self._lock = threading.Lock()
        self._open: dict[str, Database] = {}
        self._id: bytes | None = None

    def __getitem__(self, name: str) -> Database:
        """Return the store of a cell; raises `CellNotKnown`, `CellMismatch`, or a `StoreError` if it cannot be used."""
        db = self._open.get(name)  # without the lock: each transaction of a user calls this
        return db if db is not None else self._opened(name, self._directory.cell(name).url)

    def claim(self, name: str, url: str, *, is_new: bool) -> None:
        """Write the identity of a new cell to a store, or check the identity of an existing one.

        A new cell's store is created if it does not exist.

        Raises `CellMismatch` if the store is another cell, or, unless the cell is new, no cell.
        """
        wanted = Identity(name, self.directory_id())

        def claim(tr: Transaction) -> None:
            # Read with a conflict: of two directories that claim an empty store at once, one gets the error.
            if is_new and read_identity(tr) is None:
                tr.set(keys.IDENTITY, wanted.to_bytes())
            check_identity(tr, wanted)

        db = self._verified(name, url, claim, create=is_new)
        with self._lock:
            self._open[name] = db

    def check(self, tr: TransactionRead, name: str) -> None:
        """Raise `CellMismatch` unless the transaction's store is this cell: it may have been emptied."""
        check_identity(tr, Identity(name, self.directory_id()))

    def fence_in(self, tr: TransactionRead, name: str, stored: bytes | None) -> Fence:
        """Return the fence of a user of this cell, as stored there; raises `CellMismatch` for another store.

        Without a stored one, no transaction of the user has run yet, or the store was emptied.
        """
        if stored is None:
            self.check(tr, name)
            return Fence(HERE, 1)
        return Fence.from_bytes(stored)

    def close(self) -> None:
        """Close the opened stores."""
        with self._lock:
            for db in self._open.values():
                store.close(db)
            self._open.clear()

    def directory_id(self) -> bytes:
        """Return the id by which a cell identifies its directory."""
        if self._id is None:
            self._id = ensure_store_id(self._directory.db)
        return self._id

    def _opened(self, name: str, url: str) -> Database:
        db = self._verified(name, url, lambda tr: self.check(tr.snapshot, name), create=False)
        with self._lock:
            kept = self._open.setdefault(name, db)
        if kept is not db:  # another thread has opened the store first
            store.close(db)
        return kept

    def _verified(
        self, name: str, url: str, verify: Callable[[Transaction], object], *, create: bool
    ) -> Database:
        """Open the store of a URL; closes it again if `verify` raises `CellMismatch`."""
        try:
            db = self._opener(url, create=create)
        except NotAStore as error:
            if create:
                raise
            what = str(error).partition(": check the path")[0]  # an empty store in its place is no cell
            raise NotAStore(
                f"cell {name!r} has no store, correct its URL with `cq cells add {name} URL`, or restore it: {what}"
            ) from error
        try:
            transact(db, verify)
        except CellMismatch:
            store.close(db)
            raise
        return db


def read_identity(tr: TransactionRead) -> Identity | None:
    """Return the identity in a store; None if it is not a cell."""
    stored = tr.get(keys.IDENTITY).value
    return None if stored is None else Identity.from_bytes(stored)


def check_identity(tr: TransactionRead, wanted: Identity) -> None:
    """Raise `CellMismatch` unless the store is this cell."""
    found = read_identity(tr)
    if found == wanted:
        return
    if found is None:
        what = "is no cell: it was emptied, or is another store"
    elif found.directory != wanted.directory:
        what = f"is cell {found.cell!r} of another directory"
    else:
        what = f"is cell {found.cell!r}"
    raise CellMismatch(
        f"the store that the directory has for cell {wanted.cell!r} {what}: correct the URL with "
        f"`cq cells add {wanted.cell} URL`"
    )
