"""The lock file of a store: it serializes the commits of all processes, and notifies processes of commits.

SQLite alone would wait for its lock by polling. The lock of the operating system wakes the next process at once, and is
released when its process ends, even by a crash. To notify, every commit writes a byte into this file, which other
processes watch with `inotify`. Before that, the commit writes its version (see `latest_version`).

Commits write into this file, so an attacker must not be able to replace it: a link, a file of another user, and a file
with other content are rejected before the first write.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw

from cq.errors import NotAStore, StoreError
from cq.store.embedded.binding.descriptors import shortage
from cq.store.embedded.file.access import Access
from cq.store.embedded.file.file_lock import FileLock

_IN_MODIFY = 0x2
_POLL_SECONDS = 0.005
_NAME = slice(1, 8)  # identifies the file; commits write the byte before it to notify
_MAGIC = b"cq-lock"
_VERSION = slice(8, 16)  # version of the latest commit
_METADATA_CHANGED = slice(16, 24)  # version of the latest commit that changes the metadata version
_LENGTH = 24
_TRIES = 10


class LockFile(FileLock):
    """One process's handle of the lock file."""

    def __init__(self, store: Path, access: Access) -> None:
        self.store = store
        self.path = store.with_name(f"{store.name}-lock")
        try:
            descriptor = _open(self.path, access)
        except OSError as error:
            remedy = shortage(error) or "check its permissions"
            raise NotAStore(f"{self.path} cannot be opened ({error.strerror}): {remedy}") from None
        try:
            _prepare(descriptor)
            self._content = mmap.mmap(descriptor, _LENGTH, prot=mmap.PROT_READ)
        except OSError as error:
            os.close(descriptor)
            remedy = shortage(error) or "check its disk"
            raise StoreError(f"{self.path} cannot be made ({error.strerror}): {remedy}") from None
        super().__init__(descriptor)

    def acquire(self, seconds: float) -> bool:
        """Wait for the lock, for at most `seconds`; return whether it is held. Raises `apsw.Error`."""
        try:
            return super().acquire(seconds)
        except OSError as error:
            raise _storage_failure("locked", error) from error

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[bool]:
        """Hold the lock, if it can be acquired within `seconds`; yields whether it is held."""
        is_held = self.acquire(seconds)
        try:
            yield is_held
        finally:
            if is_held:
                self.release()

    def obstacle(self) -> str:
        """A message with the processes that hold the lock, and the remedy."""
        named = " and ".join(f"process {pid} of user {_user(pid)}" for pid in self.holders())
        return (
            f"{self.path} is held by {named or 'a process that the system does not name'}: nothing was committed; "
            "check whether that process is stopped, or should not use the store, and end it"
        )

    def announce(self, version: int, *, changes_metadata: bool) -> None:
        """Write the version of a commit before its COMMIT; the caller holds the lock. Raises `apsw.Error`."""
        data = version.to_bytes(8, "little")
        try:
            if changes_metadata:
                os.pwrite(self.descriptor, data, _METADATA_CHANGED.start)
            os.pwrite(self.descriptor, data, _VERSION.start)
        except OSError as error:  # other processes would not see the commit: it must fail
            raise _storage_failure("written", error) from error

    def announced(self) -> int:
        """The latest announced version; 0 if no version was announced."""
        return self._read_version(_VERSION)

    def metadata_changed(self) -> int:
        """The latest announced version that changes the metadata version; 0 if no such version was announced."""
        return self._read_version(_METADATA_CHANGED)

    def _read_version(self, where: slice) -> int:
        try:
            return int.from_bytes(self._content[where], "little")
        except ValueError:  # closed
            return 0

    def notify(self) -> None:
        """Wake all listeners. If the disk is full, they notice the commit at their next regular check."""
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, b"\0", 0)

    def close(self) -> None:
        """Close the descriptors."""
        self._content.close()
        super().close()

    def abandon(self) -> None:
        """In a forked child: close the descriptors."""
        self._content.close()
        super().abandon()


def _open(path: Path, access: Access) -> int:
    """Open the lock file, or create it; raises `NotAStore` for a file of another kind."""
    for _ in range(_TRIES):  # another process may create or remove the file between the two calls
        with contextlib.suppress(FileNotFoundError):
            return _open_existing(path, access)
        with contextlib.suppress(FileExistsError):
            return access.create(path)
    raise NotAStore(f"{path} is created and removed repeatedly: find the process that does so")


def _open_existing(path: Path, access: Access) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise _not_a_lock(path, "it is a link or a directory") from None
    try:
        if fault := _fault(descriptor, access):
            raise _not_a_lock(path, fault)
        access.apply(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _fault(descriptor: int, access: Access) -> str:
    """Why a file is not the lock of a store; "" for a lock. A crash can leave an empty lock file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_nlink > 1:
        return "it has several names (hard links)"
    if not access.admits(status.st_uid, status.st_gid):
        return f"it belongs to user {status.st_uid}, who may not write the store"
    content = os.pread(descriptor, _LENGTH + 1, 0)
    is_named = content[_NAME] in (_MAGIC, bytes(len(_MAGIC)))  # zeros: from earlier versions of cq
    if content and not (len(content) == _LENGTH and content[0] == 0 and is_named):
        return "it has other content"
    return ""


def _storage_failure(done: str, error: OSError) -> Exception:
    """The error for a lock file that cannot be used: a commit fails with it as with an error of SQLite."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    failure = apsw.exception_for(apsw.SQLITE_FULL if is_full else apsw.SQLITE_IOERR_WRITE)
    failure.args = (f"its lock file cannot be {done} ({error.strerror})",)
    return failure


def _user(pid: int) -> str:
    try:
        return str(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "unknown"


def _not_a_lock(path: Path, fault: str) -> NotAStore:
    return NotAStore(f"{path} is not the lock of a store ({fault}): move it away; it was not modified")


def _prepare(descriptor: int) -> None:
    """Write the content of a new file. Two processes may do so at the same time: they write the same bytes."""
    if os.fstat(descriptor).st_size < _LENGTH:
        os.ftruncate(descriptor, _LENGTH)
        os.pwrite(descriptor, _MAGIC, _NAME.start)


class Listener:
    """Waits for `LockFile.notify` of any process, or for `wake` of this process."""

    def __init__(self, path: Path) -> None:
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._events = _watch_file(path)
        self._poll = select.poll()  # select() fails for descriptors from 1024 on
        for descriptor in (self._wake_read, self._events):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Return after a commit, a `wake` or `seconds`; without `inotify`, after a few milliseconds."""
        if self._events is None:
            seconds = min(seconds, _POLL_SECONDS)
        for descriptor, _ in self._poll.poll(seconds * 1000):
            # One read takes all notifications: commits in quick succession are handled together.
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, 65536)

    def wake(self) -> None:
        """Make `wait` return."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._events is not None:
            os.close(self._events)


def _watch_file(path: Path) -> int | None:
    """A descriptor that becomes readable when the file is written; None if the system has no `inotify`."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
