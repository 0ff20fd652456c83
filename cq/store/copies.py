"""Copies of embedded stores that are in use: backups, and read-only stores of a stated age."""

from __future__ import annotations

import os

from cq import runtime
from cq.errors import InvalidConfiguration
from cq.store.api import Database
from cq.store.mistakes import refuse_unless_database


def make_copy(db: Database, path: str | os.PathLike[str]) -> None:
    """Copy an embedded store to a file, as of one moment, while processes use the store.

    The file replaces an earlier copy at once; a crash leaves that one. `cq.open(..., read_only=True)` opens it for
    reading: transactions that begin later read the copy that is there then, and `copy_age` says how old it is. Opened
    in another way, or in the place of a lost store, it is a store as any other. The next copy to the same path removes
    the file `PATH-draft` of a killed process.

    Args:
        db: a database of an embedded store.
        path: path of the copy: a new file, or an earlier copy. It gets the permissions of the store.

    Raises:
        InvalidConfiguration: the database is a cluster, which has backups of its own.
        StoreError: the path has another file, another process copies to it, or the copy cannot be written.
    """
    copy_to = getattr(db, "copy_to", None)
    if copy_to is None:
        refuse_unless_database(db)
        raise InvalidConfiguration("only an embedded store can be copied: for a cluster use `fdbbackup`")
    copy_to(path)


def copy_age(db: Database) -> float | None:
    """Return how old the copy is that a database reads, in seconds since `make_copy` began; None if it is no copy."""
    at: float | None = getattr(db, "copied_at", None)
    return None if at is None else max(0.0, runtime.time() - at)
