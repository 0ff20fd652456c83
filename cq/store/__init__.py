"""Where transactions run: `open` finds the store that a URL means.

Both kinds of store offer the methods of the official Python binding; `cq.store.api` lists those that cq uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from cq.errors import InvalidUrl
from cq.store.api import Database

DEFAULT_URL = "embedded:cq.db"

T = TypeVar("T")

__all__ = ["DEFAULT_URL", "OpenDatabase", "close", "located", "open"]


class OpenDatabase(Database, Protocol):
    """A database that cq has opened: it can also run a function in a transaction."""

    def transact(self, fn: Callable[[Any], T]) -> T:
        """Run `fn(tr)` in a transaction, again until it has committed; see `cq.store.transact.transact`."""
        ...


def open(url: str | None = None) -> OpenDatabase:
    """Open the store of `url`, else of `$CQ_STORE`, else `embedded:cq.db`.

    - `embedded:PATH`: one SQLite file, made if it does not exist
    - `fdb:`: the cluster of the default cluster file; `fdb:/path/to/fdb.cluster`: of that one

    `~` at the start of a path is the home directory.

    Raises `InvalidUrl` for anything else, and a `StoreError` when the store cannot be used: `NotAStore`,
    `ClientLibraryError`, `StoreUnreachable`. Each message is one line that says what to do.
    """
    scheme, path = located(url)
    if scheme == "fdb":
        from cq.store.foundationdb import open_cluster

        cluster: OpenDatabase = open_cluster(path or None)
        return cluster
    from cq.store.embedded import Database as Embedded

    return Embedded(path)


def close(db: Database) -> None:
    """Close a database in good order, if it has anything to close: an embedded store; a cluster's client needs none."""
    closing: Callable[[], None] | None = getattr(db, "close", None)
    if closing is not None:
        closing()


def is_local(db: object) -> bool:
    """Whether a database is a file on this machine: nothing is gained there by having much in flight."""
    from cq.store.embedded import Database as Embedded

    return isinstance(db, Embedded)


def located(url: str | None = None) -> tuple[str, str]:
    """`embedded` or `fdb`, and the path, of the URL that `open` would take; raises `InvalidUrl`."""
    source, url = _chosen(url)
    scheme, colon, path = url.partition(":")
    if not colon or scheme not in ("embedded", "fdb"):
        raise InvalidUrl(f"{source} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster")
    if scheme == "embedded" and not path:
        raise InvalidUrl(f"{source} names no file: write embedded:PATH, for example {DEFAULT_URL}")
    try:
        if b"\x00" in os.fsencode(path):
            raise ValueError
    except ValueError:
        raise InvalidUrl(
            f"{source} names no file: a path has no NUL, and nothing that the system cannot spell"
        ) from None
    return scheme, os.path.expanduser(path)


def _chosen(url: str | None) -> tuple[str, str]:
    """How the URL in force is called in messages, and the URL."""
    if url is not None:
        return f"the store {url!r}", url
    if named := os.environ.get("CQ_STORE"):
        return f"the store {named!r} in $CQ_STORE", named
    return f"the default store {DEFAULT_URL!r}", DEFAULT_URL
