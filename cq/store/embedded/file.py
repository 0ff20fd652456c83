"""The store file: creating it, checking it, and opening connections to it.

A store is one SQLite database in write-ahead-log mode with two tables: `kv` has the rows, `commits` the keys written by
the latest commits (see `conflict_log`). In its header, `application_id` identifies a store and `user_version` its
format. Both are read from the plain bytes of the file before SQLite opens it, so a file of another program, or of a
newer version of cq, is not modified.

A new store is written completely under another name and then renamed, so no process sees an incomplete store. So is a
copy of a store, which is a file without a log: its header says so, until a process opens it for writing.

SQLite creates the files beside a store (`-wal`, `-shm`) with the permissions of the store. The lock file gets the same
permissions, so that the permissions of the store alone control who may use it. In a directory like `/tmp`, another user
may place such a file as a trap: a file whose owner may not write the store is rejected.

SQLite's locks belong to the process and the file, not to a descriptor. So the module knows the stores that this process
has open. Closing any descriptor of such a file releases all locks, so code outside SQLite must not open it. And a
forked child inherits SQLite's record of locks that only the parent holds, so the child must not open it at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw

from cq import runtime
from cq.errors import NotAStore, StoreError
from cq.store.embedded.error import explain, is_damaged

PRIVATE = 0o600
"""The permissions of a new store, unless the caller shares it."""

_PERMISSIONS = 0o666  # a store is never executable
_SECOND = 1_000_000_000
_LONGEST_TICK = 100_000_000
"""Nanoseconds, more than a file system's clock takes for a step, unless it counts whole seconds."""
_SYSTEMS_CHOICE = -1  # the group of the process, or of the directory


class Access(NamedTuple):
    """Who may use a store: its owner, its group, and the permission bits of its file."""

    user: int
    group: int
    mode: int

    def create(self, path: Path) -> int:
        """The descriptor of a new, empty file with this access; raises `FileExistsError` also for a link."""
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, self.mode
        )
        try:
            if os.geteuid() == 0 and self.group != _SYSTEMS_CHOICE:
                # A file of root would lock out the owner of the store.
                os.fchown(descriptor, self.user, self.group)
            self.apply(descriptor)  # the umask may have removed permissions
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def apply(self, descriptor: int) -> None:
        """Set the permissions of a file to those of the store, if this process may."""
        status = os.fstat(descriptor)
        if os.geteuid() in (0, status.st_uid) and stat.S_IMODE(status.st_mode) != self.mode:
            os.fchmod(descriptor, self.mode)

    def admits(self, owner: int, group: int) -> bool:
        """Whether a file with this owner and group was created by a user who may write the store."""
        if owner in (os.geteuid(), 0, self.user) or self.mode & stat.S_IWOTH:
            return True
        return bool(self.mode & stat.S_IWGRP) and group == self.group


def new_access(mode: int) -> Access:
    """The access of a store that this process creates."""
    return Access(os.geteuid(), _SYSTEMS_CHOICE, mode)


def access_of(path: Path) -> Access:
    """The access of the store at a path."""
    status = path.stat()
    return Access(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode) & _PERMISSIONS)


FileId = tuple[int, int]
"""Device and inode number: the identity of a file, independent of its name."""

FORKED = (
    "the store was open when this process was forked: start processes with spawn, or open it after the fork"
)


opening = threading.RLock()
"""Held while a store is opened. Reentrant: the garbage collector may close another store in the same thread."""

_open: Counter[FileId] = Counter()
_before_fork: set[FileId] = set()


def note_open(file: FileId) -> None:
    """Record that a store is open."""
    _open[file] += 1


def note_closed(file: FileId) -> None:
    """Record that a store is closed."""
    with opening:
        _open[file] -= 1


def note_fork() -> None:
    """In a forked child: record that it must not open the stores of its parent."""
    global opening  # noqa: PLW0603 - a thread that does not exist in the child may have held it
    opening = threading.RLock()
    _before_fork.update(+_open)


APPLICATION_ID = 0x6371_6B76  # "cqkv"
FORMAT = 1

PAGE_BYTES = 4096
READER_CACHE_KIB = 1024
WRITER_CACHE_KIB = 24_576
BUSY_SECONDS = 10.0

_MAGIC = b"SQLite format 3\x00"
_LOG_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
_HEADER_BYTES = 100
_SIDE_FILES = ("-wal", "-shm", "-journal")
_VERSIONS = {1, 2}  # of SQLite's format: without a log, and with one
_WITHOUT_LOG = b"\x01\x01"
_STEPS_BETWEEN_SIGNALS = 10_000
_MOUNTS = Path("/proc/self/mountinfo")
_MARK = APPLICATION_ID.to_bytes(4, "big")

_C = TypeVar("_C", bound=apsw.Connection)

_SETTINGS = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""
_TABLES = {
    "kv": "CREATE TABLE kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID",
    "commits": "CREATE TABLE commits (version INTEGER PRIMARY KEY, writes BLOB NOT NULL)",
}
_STATISTICS = {  # of the command ANALYZE
    "sqlite_stat1": "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}
_FIRST_VERSION = "INSERT INTO commits VALUES (1, x'')"
_SCHEMA = ";\n".join(["BEGIN", *_TABLES.values(), _FIRST_VERSION, "COMMIT", "PRAGMA journal_mode = WAL"])


def connect(path: Path, *, power_safe: bool, cache_kib: int = READER_CACHE_KIB) -> apsw.Connection:
    """A connection for any thread. It makes no checkpoints by itself: the committer makes them."""
    connection = connect_uri(path, "mode=rw", apsw.Connection)
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # A statement that writes many rows saves the old pages for a rollback, by default in a temporary file.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA synchronous = {'FULL' if power_safe else 'NORMAL'}")
    return connection


def identify(path: str | Path) -> FileId:
    """The identity of a file."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def check(path: Path, *, creates: bool = True, writes: bool = True) -> bool:
    """Whether there is a store at `path`; False if there is no file yet. Does not write.

    Args:
        path: path of the file.
        creates: whether the caller creates a missing store; otherwise a missing store is an error.
        writes: whether the caller needs write permission.

    Raises:
        NotAStore: the path is not a usable store.
        StoreError: this process must not open it.
    """
    try:
        with opening:
            if _is_open_here(identify(path)):
                return True
            # Creating a store would replace a device or a pipe.
            if not (path.is_file() or path.is_dir()):
                raise NotAStore(f"{path} is not a regular file: name a regular file, or a new one")
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
                size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        header, size = b"", 0
    except IsADirectoryError:
        raise NotAStore(f"{path} is a directory: name a file in it, such as {path / 'store.db'}") from None
    except OSError as error:
        raise NotAStore(f"{path} cannot be read ({error.strerror}): check its permissions") from None
    if not header:
        if not creates:
            raise NotAStore(
                f"the store {path} does not exist: check the path, or create it with "
                "`cq configure QUEUE --combiner sum`, `cq feed configure FEED` or `cq cells add NAME URL`"
            )
        _check_directory(path)
        return False
    _check_header(path, header, size)
    _check_side_files(path)
    if writes or made_at(path) is None:
        _check_names(path)
    if writes and not is_writable(path):
        raise NotAStore(f"{path} or its directory cannot be written: check their permissions")
    return True


def is_writable(path: Path) -> bool:
    """Whether this process may write a store: the file, and files in its directory."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def create(path: Path, access: Access) -> None:
    """Create an empty store. The caller holds the lock, so no other process creates it at the same time."""
    _refuse_log(path)

    def fill(draft: Path) -> None:
        with contextlib.closing(apsw.Connection(str(draft))) as connection:
            connection.execute(_SETTINGS + _SCHEMA).fetchall()

    try:
        _write_whole(path, access, fill)
    except (OSError, apsw.Error) as error:
        raise NotAStore(
            f"the store {path} cannot be created ({error}): check the directory and the disk"
        ) from error


def _refuse_log(path: Path) -> None:
    """Refuse to put a new file beside an old log, which SQLite would replay into it."""
    if has_log(path):
        raise NotAStore(
            f"{log_of(path)} is there and its store is not: put {path.name} back beside it, or remove it for a new one"
        )


def _write_whole(path: Path, access: Access, fill: Callable[[Path], object]) -> None:
    """Write a file by `fill(draft)`, and rename it; if that fails, nothing is left.

    Raises `OSError`, and `BlockingIOError` while another thread or process writes the same file.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "SQLite opens only paths in UTF-8") from None
    draft = path.with_name(f"{path.name}-draft")
    # SQLite opens the draft by its path: the permissions of a read-only store would keep it from that.
    with _locked(draft, access._replace(mode=access.mode | stat.S_IRUSR | stat.S_IWUSR)):
        try:
            fill(draft)
            with draft.open("rb") as file:
                access.apply(file.fileno())
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            _remove(draft)
            raise
    _sync_directory(path.parent)


def _remove(draft: Path) -> None:
    """Remove a draft with the journal that SQLite may have left beside it."""
    draft.with_name(f"{draft.name}-journal").unlink(missing_ok=True)
    draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(draft: Path, access: Access) -> Iterator[None]:
    """Create a draft, locked while it is written; the draft of a killed process, which has no lock, is removed."""
    with contextlib.suppress(FileNotFoundError):
        former = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _lock(former, draft)
            _remove(draft)
        finally:
            os.close(former)
    descriptor = access.create(draft)  # SQLite would create it readable for all users
    try:
        _lock(descriptor, draft)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, draft: Path) -> None:
    """Lock an open draft; raises `BlockingIOError` if another one has locked, removed or renamed it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not (draft.exists() and os.path.samestat(os.fstat(descriptor), draft.lstat())):
        raise BlockingIOError


def write_copy(source: Path, connection: apsw.Connection, path: Path) -> None:
    """Copy the store that a connection reads, as of one moment, to a file that is new or an earlier copy.

    Raises `StoreError`.
    """
    if path == source:
        raise StoreError(f"{path} is the store itself: name another file")
    _check_replaceable(path)
    begun = made_at(source) or runtime.time()  # a copy of a copy is as old as that is

    def fill(draft: Path) -> None:
        connection.set_progress_handler(_raise_interrupt, _STEPS_BETWEEN_SIGNALS)
        try:
            connection.execute("VACUUM INTO ?", (str(draft),))
        finally:
            connection.set_progress_handler(None)
        os.utime(draft, (begun, begun))
        # Again: meanwhile a process may have opened the earlier copy for writing.
        _check_replaceable(path)

    try:
        _write_whole(path, access_of(source), fill)
    except BlockingIOError:
        raise StoreError(
            f"another thread or process is copying to {path}: wait until it has finished"
        ) from None
    except OSError as error:
        raise StoreError(
            f"the copy {path} cannot be written ({error.strerror}): check the directory and the disk"
        ) from error
    except apsw.Error as error:
        raise StoreError(f"{source} cannot be copied: {explain(error, path)}") from error


def _raise_interrupt() -> bool:
    """Let Python raise the exception of ^C, which ends the statement: a large copy takes minutes."""
    return False


def _check_replaceable(path: Path) -> None:
    if path.exists() and made_at(path) is None:
        raise StoreError(f"{path} is no copy of a store: name a new file, or an earlier copy")
    _refuse_log(path)


def made_at(path: Path) -> float | None:
    """When the copy at a path was begun, in seconds since 1970; None if there is none, or if it was opened for writing.

    While a store is open, its index is there. Without one, this process has no locks that reading the file could
    release.
    """
    with opening, contextlib.suppress(OSError):
        if path.is_file() and not path.with_name(f"{path.name}-shm").exists():
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
                begun = os.fstat(file.fileno()).st_mtime
            if header[:16] == _MAGIC and header[18:20] == _WITHOUT_LOG and header[68:72] == _MARK:
                return begun
    return None


def connect_first(path: Path, connect: Callable[..., apsw.Connection]) -> apsw.Connection:
    """The connection for commits. Reads a row of both tables, so that most damaged files are rejected here.

    The first connection is read-only: closing one that may write would copy the log of a crashed process into the file,
    and a rejected file must not be modified.
    """
    connection = None
    try:
        with explained(path), contextlib.closing(connect_uri(path, "mode=ro", apsw.Connection)) as look:
            check_content(path, look)
            connection = connect(cache_kib=WRITER_CACHE_KIB)
            connection.execute("PRAGMA journal_mode = WAL")  # a copy of the file may have lost this mode
            connection.execute("SELECT 1 FROM commits LIMIT 1").fetchone()  # the first read opens the log
    except StoreError:
        if connection is not None:
            connection.close()
        raise
    return connection


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as `NotAStore` if the file is damaged, else as `StoreError`."""
    try:
        yield
    except UnicodeDecodeError as error:  # of damaged bytes in the schema, or in a message that quotes it
        raise NotAStore(explain(apsw.CorruptError("its schema is malformed"), path)) from error
    except apsw.Error as error:
        kind = NotAStore if is_damaged(error) else StoreError
        raise kind(explain(error, path)) from error


def connect_uri(path: Path, options: str, kind: type[_C]) -> _C:
    """A connection with `options` in SQLite's URI."""
    connection = kind(f"{path.as_uri()}?{options}", flags=_OPEN_FLAGS)
    connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def check_content(path: Path, connection: apsw.Connection) -> None:
    """Check the file with its log, which may be newer than the file, or belong to another one."""
    _check_marks(
        path,
        connection.execute("PRAGMA application_id").get,
        connection.execute("PRAGMA user_version").get,
    )
    try:
        _check_schema(path, connection)
        if connection.execute("SELECT max(version) + length(writes) FROM commits").get is None:
            raise apsw.CorruptError("it has no versions")
        connection.execute("SELECT length(k), length(v) FROM kv LIMIT 1").fetchone()
    except apsw.SQLError as error:
        # A table or a column is missing, or SQLite does not know the format of the schema.
        raise apsw.CorruptError(str(error)) from error


def _check_schema(path: Path, connection: apsw.Connection) -> None:
    """Reject a schema that cq did not create, before any statement uses it.

    A view instead of a table, a trigger or a computed column can make a statement run for ever or fill the memory.
    """
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    found = set(connection.execute(query))
    if not _schema_rows(_TABLES) <= found:
        raise apsw.CorruptError("its schema is not the schema of a cq store")
    if not found <= _schema_rows(_TABLES | _STATISTICS):
        raise NotAStore(
            f"{path} has tables, views, indexes or triggers that cq did not create: remove them, or restore the store "
            "from a backup"
        )


def _schema_rows(tables: dict[str, str]) -> set[tuple[str, ...]]:
    """The schema rows of tables."""
    return {("table", name, name, statement) for name, statement in tables.items()}


def log_of(path: Path) -> Path:
    """The log of the store at a path."""
    return path.with_name(f"{path.name}-wal")


class Places:
    """The places of an open store and of the files beside it, to see whether the files are still there.

    While the folder is as it was, so are its entries: one look at it is enough. A look at a file that each commit
    writes costs more: since Linux 6.13 the next write then notes the exact time, and the next sync writes this, too.
    Commits of few updates took 30 % longer for that.
    """

    def __init__(self, path: Path) -> None:
        self._paths = tuple(f"{path}{ending}" for ending in ("", "-wal", "-shm", "-lock"))
        self._files = identities(self._paths)
        self._folder = str(path.parent)
        self._seen: tuple[int, ...] = ()

    @property
    def lost(self) -> str:
        """What to do once a file was removed or replaced."""
        path = self._paths[0]
        return (
            f"{path} or a file beside it ({path}-wal, -shm, -lock) was removed or replaced while the store was in use: "
            "close the store and open it again; no program may remove its files, and a process that has it open must "
            "not also open it by Python's sqlite3"
        )

    def are_kept(self) -> bool:
        """Whether none of the files was removed or replaced."""
        try:
            folder = os.stat(self._folder)
        except OSError:
            return False
        changed = folder.st_ctime_ns
        seen = (folder.st_dev, folder.st_ino, changed)
        if seen == self._seen:
            return True
        if identities(self._paths) != self._files:
            return False
        # A change soon after the last one may have the same time.
        if changed % _SECOND and runtime.time_ns() - changed > _LONGEST_TICK:
            self._seen = seen
        return True


def identities(paths: tuple[str, ...]) -> list[FileId]:
    """The identities of files; empty if one cannot be found."""
    try:
        return [identify(path) for path in paths]
    except OSError:
        return []


def has_log(path: Path) -> bool:
    """Whether the store has a log with content, which may be newer than the file."""
    log = log_of(path)
    return log.exists() and log.stat().st_size > 0


def _is_log_valid(path: Path) -> bool:
    try:
        with log_of(path).open("rb") as log:
            return log.read(len(_LOG_MAGICS[0])) in _LOG_MAGICS
    except OSError:
        return False


def _is_open_here(file: FileId) -> bool:
    """Whether this process has the file open as a store. Then the check must not open it: that would drop its locks."""
    if file in _before_fork:
        raise StoreError(FORKED)
    return _open[file] > 0


def _check_directory(path: Path) -> None:
    if not path.parent.is_dir():
        raise NotAStore(f"the directory of {path} does not exist: create it first")
    if not os.access(path.parent, os.W_OK):
        raise NotAStore(f"the directory of {path} cannot be written: check its permissions")


def _check_side_files(path: Path) -> None:
    """Reject a log or index of SQLite if its owner has no write permission for the store.

    SQLite would read its content as a part of the store.
    """
    store = access_of(path)
    for ending in _SIDE_FILES:
        helper = path.with_name(path.name + ending)
        with contextlib.suppress(FileNotFoundError):
            status = helper.lstat()
            if not (stat.S_ISREG(status.st_mode) and store.admits(status.st_uid, status.st_gid)):
                raise NotAStore(
                    f"{helper} was not made by a user who may write the store (but by user {status.st_uid}): "
                    "find out where it comes from, and move it away"
                )


def _check_names(path: Path) -> None:
    """Refuse a file with a second name: SQLite has a log beside each name, so commits under one would be lost."""
    if path.stat().st_nlink > 1:
        raise NotAStore(f"{path} has several names (hard links): use a symbolic link, or a copy")
    with contextlib.suppress(OSError):  # other systems have no such mounts
        point = re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
        if point in (line.split()[4] for line in _MOUNTS.read_bytes().splitlines()):
            raise NotAStore(
                f"{path} is a mount of the file alone: mount its directory, which has its log, too"
            )


def _check_header(path: Path, header: bytes, size: int) -> None:
    if not header.startswith(_MAGIC) and _is_log_valid(path):
        return  # a checkpoint was interrupted: SQLite repairs the file from the log, or fails, when it is opened
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise NotAStore(f"{path} is not a cq store: name another file; it was not modified")
    _check_marks(path, int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"))
    pages, page_bytes = int.from_bytes(header[28:32], "big"), int.from_bytes(header[16:18], "big")
    if page_bytes != PAGE_BYTES or not {*header[18:20]} <= _VERSIONS:
        raise NotAStore(f"{path} is damaged (its header has changed): restore it from a backup")
    # A file with a log may be shorter than its header says, until the next checkpoint.
    if size < pages * page_bytes and not has_log(path):
        raise NotAStore(f"{path} is damaged (it is truncated): restore it from a backup")


def _check_marks(path: Path, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise NotAStore(f"{path} is the database of another program: name another file; it was not modified")
    if version > FORMAT:
        raise NotAStore(f"{path} has format {version}, written by a newer version of cq: upgrade cq")


def _sync_directory(directory: Path) -> None:
    """Sync a directory, so that a rename in it survives a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
