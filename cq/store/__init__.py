"""The store: a FoundationDB cluster or an embedded store in one file. `open` opens the store of a URL.

Both kinds have the methods of the official Python binding; `cq.store.api` lists the methods that cq uses. The room also
has helpers for transactions: the retry loop, sizes, watches and version ages. It imports no queue or configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from cq import runtime
from cq.errors import InvalidConfiguration, InvalidUrl, NotAStore, StoreError
from cq.keys import ROOT
from cq.store.api import Database, Transaction
from cq.store.follower import FollowedRead, ReadFollower
from cq.store.mistakes import refuse_unless_database
from cq.store.reads import read_earlier
from cq.store.space import Space, SpaceDatabase, url_prefix

DEFAULT_URL = "embedded:cq.db"
"""The store without a URL and without `$CQ_STORE`: the file `cq.db` in the current folder."""
PREFIX_ENV: Final = "CQ_PREFIX"
"""The environment variable with the prefix of cq's keys, for URLs without one."""
_SCHEMES: Final = ("embedded", "fdb")
_OPTIONS: Final = re.compile(r"\?((?:mode|prefix)=[^?]*)$")

T = TypeVar("T")

__all__ = [
    "DEFAULT_URL",
    "FollowedRead",
    "OpenDatabase",
    "ReadFollower",
    "Space",
    "absolute",
    "close",
    "copy_age",
    "located",
    "make_copy",
    "open",
    "open_exactly",
    "read_earlier",
    "space_at",
    "store_of",
]


class OpenDatabase(Database, Protocol):
    """A database that cq has opened: it can also run a function in a transaction."""

    def transact(self, fn: Callable[[Transaction], T], /, *, write_only: bool = False) -> T:
        """Run `fn(tr)` in a transaction, again until it has committed; `write_only` and errors: see `cq.transact`."""
        ...

    def __getitem__(self, key: Any) -> Any: ...
    def __setitem__(self, key: bytes, value: bytes) -> None: ...
    def __delitem__(self, key: Any) -> None: ...


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    read_only: bool = False,
    prefix: Any = None,
) -> OpenDatabase:
    """Open the store of `url`, else of `$CQ_STORE`, else `embedded:cq.db`.

    - `embedded:PATH`: one SQLite file, created if it does not exist, for its owner only
    - `embedded:PATH?mode=0660`: the same; a new file gets these permissions, here also for its group
    - `fdb:`: the cluster of the default cluster file; `fdb:/path/to/fdb.cluster`: of this cluster file
    - `fdb:?prefix=staging`, `embedded:PATH?mode=0660&prefix=staging`: only the part of the store below this prefix
    - `pathlib.Path("cq.db")`: the file of an embedded store

    `~` at the start of a URL's path is the home directory.

    Args:
        url: URL of the store, or path of an embedded store as an `os.PathLike`.
        create: whether to create the file of an embedded store if it does not exist.
        read_only: for a program that only reads. The file is not created; read permission suffices, also on a full
            disk. Without write permission, if the disk has no room, and for a copy of `make_copy`, commits with writes
            raise `StoreError`.
        prefix: prefix of cq's keys in the store, as `cq.store.Space` takes it; by default that of the URL, else
            `$CQ_PREFIX`, else `cq/`. Queues of other prefixes cannot be seen.

    Raises:
        TypeError: the URL is an object of another type.
        InvalidUrl: the URL has another form.
        InvalidConfiguration: the prefix is invalid.
        NotAStore: the file is not an embedded store, is damaged, or a newer version of cq wrote it.
        StoreError: the file cannot be used for another reason.
        ClientLibraryError: FoundationDB's binding or client library is missing, or does not fit.
        StoreUnreachable: the cluster does not answer.

    Each message is one line with the remedy.
    """
    parsed = _parsed_path(url) if isinstance(url, os.PathLike) else _parsed(url)
    space = _space_of(parsed) if prefix is None else Space(prefix)
    opened: OpenDatabase = space.database(_open_whole(parsed, create=create, read_only=read_only))
    return opened


def space_at(url: str | None = None) -> Space:
    """The space that `open` would open; raises `InvalidUrl`, and `InvalidConfiguration` for a wrong `$CQ_PREFIX`."""
    return _space_of(_parsed(url))


def _space_of(parsed: _StoreUrl) -> Space:
    return Space(parsed.prefix or os.environ.get(PREFIX_ENV) or ROOT)


def open_exactly(url: str, *, create: bool = True, read_only: bool = False) -> OpenDatabase:
    """Open the store of a URL that another process may have written: `$CQ_PREFIX` does not apply to it.

    Args:
        url: the URL, as for `open`.
        create: as for `open`.
        read_only: as for `open`.

    Returns:
        The open store. Raises the errors of `open`.
    """
    return open(url, create=create, read_only=read_only, prefix=_parsed(url).prefix or ROOT)


def _open_whole(parsed: _StoreUrl, *, create: bool, read_only: bool) -> Any:
    if parsed.scheme == "fdb":
        from cq.store.foundationdb import open_cluster

        return open_cluster(parsed.path or None)
    from cq.store.embedded import PRIVATE, ReadOnlyDatabase, is_writable, made_at
    from cq.store.embedded import Database as Embedded

    path = Path(os.path.realpath(parsed.path))
    if read_only and (not is_writable(path) or made_at(path) is not None):
        return ReadOnlyDatabase(path)
    mode = PRIVATE if parsed.mode is None else parsed.mode
    try:
        return Embedded(parsed.path, mode=mode, create=create and not read_only)
    except NotAStore:
        raise
    except StoreError:
        if not read_only:
            raise
        # A full disk has no room for the files that SQLite makes beside the store of the first process that opens it.
        with suppress(StoreError):
            return ReadOnlyDatabase(parsed.path)
        raise


def close(db: Database) -> None:
    """Close an embedded store. Does nothing for a cluster, whose client needs no closing."""
    closing: Callable[[], None] | None = getattr(db, "close", None)
    if closing is not None:
        closing()


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


def store_of(db: object) -> str:
    """The store of a database for messages: `embedded:` with the path of the file, or `fdb:`; then its prefix."""
    path = getattr(db, "path", None)
    store = f"embedded:{path}" if isinstance(path, Path) else "fdb:"
    return f"{store}?prefix={url_prefix(db.placement.prefix)}" if isinstance(db, SpaceDatabase) else store


def located(url: str | None = None) -> tuple[str, str]:
    """`embedded` or `fdb`, and the path, of the URL that `open` would take; raises `InvalidUrl`."""
    parsed = _parsed(url)
    return parsed.scheme, parsed.path


def absolute(url: str) -> str:
    """The URL of an existing store, with an absolute path: valid in every folder. Raises `InvalidUrl`.

    It has no `mode`, which only a new store takes.
    """
    parsed = _parsed(url)
    path = os.path.abspath(parsed.path) if parsed.path else ""
    return f"{parsed.scheme}:{path}" + (parsed.prefix and f"?prefix={parsed.prefix}")


class _StoreUrl(NamedTuple):
    """The parts of a store's URL: scheme, path, permissions of a new file or None, and prefix or empty."""

    scheme: str
    path: str
    mode: int | None
    prefix: str


def _parsed_path(path: os.PathLike[str]) -> _StoreUrl:
    """The embedded store of a path, whose characters have no other meaning; raises `InvalidUrl` for a URL as a path."""
    found = os.fspath(path)
    if isinstance(found, str) and not found.startswith(("embedded:", "fdb:")):
        return _StoreUrl("embedded", found, None, "")
    raise InvalidUrl(
        f"the store {path!r} names no file: give a URL as a str, as in cq.open('embedded:cq.db')"
    )


def shown_url(url: str) -> str:
    """A URL for messages: one of another kind of database, which may hold a password, is cut."""
    scheme, _, path = url.partition(":")
    return f"{scheme}:..." if scheme not in _SCHEMES and re.search("[@?]", path) else url


def _parsed(url: str | None) -> _StoreUrl:
    source, url = _chosen(url)
    if not isinstance(url, str):
        raise TypeError(f"{source} is no URL: give a str or a path, as in cq.open('embedded:cq.db')")
    scheme, colon, path = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        source = source.replace(repr(url), repr(shown_url(url)))
        raise InvalidUrl(f"{source} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster")
    options: dict[str, str] = {}
    if found := _OPTIONS.search(path):
        path, options = path[: found.start()], _options(source, found[1])
    if scheme == "fdb" and "mode" in options:
        raise InvalidUrl(f"{source} has permissions: only an embedded store takes ?mode=")
    if scheme == "embedded" and not path:
        raise InvalidUrl(f"{source} names no file: write embedded:PATH, for example {DEFAULT_URL}")
    try:
        if b"\x00" in os.fsencode(path):
            raise ValueError
    except ValueError:
        raise InvalidUrl(
            f"{source} names no file: a path must not contain NUL, or characters that the system cannot encode"
        ) from None
    mode = _permissions(source, options["mode"]) if "mode" in options else None
    return _StoreUrl(scheme, os.path.expanduser(path), mode, options.get("prefix", ""))


def _options(source: str, given: str) -> dict[str, str]:
    """The options after the "?" of a URL: `mode` and `prefix`."""
    options = dict(option.partition("=")[::2] for option in given.split("&"))
    if not options.keys() <= {"mode", "prefix"} or len(options) <= given.count("&"):
        raise InvalidUrl(
            f"{source} has an unknown or repeated option: write ?mode=0660, ?prefix=NAME or both with &"
        )
    try:
        Space(options.get("prefix", ROOT))
    except InvalidConfiguration as error:
        raise InvalidUrl(f"{source} has an invalid prefix: {error}") from None
    return options


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
