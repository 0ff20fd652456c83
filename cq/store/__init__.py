"""The store: a FoundationDB cluster or an embedded store in one file. `open` opens the store of a URL.

Both kinds have the methods of the official Python binding; `cq.store.api` lists the methods that cq uses. The room also
has helpers for transactions: the retry loop, sizes, watches and version ages. It imports no queue or configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cq.errors import InvalidUrl
from cq.store.api import Database

DEFAULT_URL = "embedded:cq.db"

T = TypeVar("T")

__all__ = ["DEFAULT_URL", "OpenDatabase", "absolute", "close", "located", "open"]


class OpenDatabase(Database, Protocol):
    """A database that cq has opened: it can also run a function in a transaction."""

    def transact(self, fn: Callable[[Any], T]) -> T:
        """Run `fn(tr)` in a transaction, again until it has committed; see `cq.store.transact.transact`."""
        ...


def open(url: str | None = None, *, create: bool = True, read_only: bool = False) -> OpenDatabase:
    """Open the store of `url`, else of `$CQ_STORE`, else `embedded:cq.db`.

    - `embedded:PATH`: one SQLite file, created if it does not exist, for its owner only
    - `embedded:PATH?mode=0660`: the same; a new file gets these permissions, here also for its group
    - `fdb:`: the cluster of the default cluster file; `fdb:/path/to/fdb.cluster`: of this cluster file

    `~` at the start of a path is the home directory.

    Args:
        url: URL of the store.
        create: whether to create the file of an embedded store if it does not exist.
        read_only: for a program that only reads. The file is not created, and read permission suffices. Without write
            permission, commits with writes raise `StoreError`.

    Raises `InvalidUrl` for any other URL, and a `StoreError` if the store cannot be used: `NotAStore`,
    `ClientLibraryError` or `StoreUnreachable`. Each message is one line with the remedy.
    """
    scheme, path, mode = _parsed(url)
    if scheme == "fdb":
        from cq.store.foundationdb import open_cluster

        cluster: OpenDatabase = open_cluster(path or None)
        return cluster
    from cq.store.embedded import PRIVATE, ReadOnlyDatabase, is_writable
    from cq.store.embedded import Database as Embedded

    if read_only and not is_writable(Path(path).resolve()):
        return ReadOnlyDatabase(path)
    return Embedded(path, mode=PRIVATE if mode is None else mode, create=create and not read_only)


def close(db: Database) -> None:
    """Close an embedded store. Does nothing for a cluster, whose client needs no closing."""
    closing: Callable[[], None] | None = getattr(db, "close", None)
    if closing is not None:
        closing()


def is_local(db: object) -> bool:
    """Whether a database is a local file, for which concurrent requests bring no gain."""
    from cq.store.embedded import Database as Embedded

    return isinstance(db, Embedded)


def located(url: str | None = None) -> tuple[str, str]:
    """`embedded` or `fdb`, and the path, of the URL that `open` would take; raises `InvalidUrl`."""
    scheme, path, _ = _parsed(url)
    return scheme, path


def absolute(url: str) -> str:
    """The URL with an absolute path, valid in every folder; raises `InvalidUrl`."""
    scheme, path, mode = _parsed(url)
    return f"{scheme}:{os.path.abspath(path) if path else ''}" + ("" if mode is None else f"?mode={mode:04o}")


def _parsed(url: str | None) -> tuple[str, str, int | None]:
    """The kind of store, its path, and the permissions of a new file, if the URL has any."""
    source, url = _chosen(url)
    scheme, colon, path = url.partition(":")
    if not colon or scheme not in ("embedded", "fdb"):
        raise InvalidUrl(f"{source} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster")
    mode = None
    if scheme == "embedded" and "?mode=" in path:
        path, _, digits = path.rpartition("?mode=")
        mode = _permissions(source, digits)
    if scheme == "embedded" and not path:
        raise InvalidUrl(f"{source} names no file: write embedded:PATH, for example {DEFAULT_URL}")
    try:
        if b"\x00" in os.fsencode(path):
            raise ValueError
    except ValueError:
        raise InvalidUrl(
            f"{source} names no file: a path must not contain NUL, or characters that the system cannot encode"
        ) from None
    return scheme, os.path.expanduser(path), mode


def _permissions(source: str, digits: str) -> int:
    if not re.fullmatch("0?6[0246][0246]", digits):
        raise InvalidUrl(
            f"{source} has invalid permissions for a store: write ?mode=0660 to share a new store with its group"
        )
    return int(digits, 8)


def _chosen(url: str | None) -> tuple[str, str]:
    """The name of the URL for messages, and the URL."""
    if url is not None:
        return f"the store {url!r}", url
    if named := os.environ.get("CQ_STORE"):
        return f"the store {named!r} in $CQ_STORE", named
    return f"the default store {DEFAULT_URL!r}", DEFAULT_URL
