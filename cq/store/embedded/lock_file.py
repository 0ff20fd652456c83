"""The lock file of a store: it serializes the commits of all processes, and notifies processes of commits.

SQLite alone would wait for its lock by polling. The lock of the operating system wakes the next process at once, and is
released when its process ends, even by a crash. To notify, every commit writes a byte into this file, which other
processes watch with `inotify`.

Before its COMMIT, and with the lock held, a process announces the version of the commit in the file. If the commit
changes the metadata version, the process first announces the version of that change. So a metadata version read from
SQLite stays valid until a later change is announced, and the latest announced version is not before the version of any
commit that has returned.

The commit of an announced version may still be running, or never happen if its process dies. Other commits then get
later versions, so a transaction may begin at the announced version: no commit lies between the last commit and it. If
the lost commit announced a change of the metadata version, all processes query SQLite until the next commit.

Commits write into this file, so an attacker must not be able to replace it: a link, a file of another user, and a file
with other content are rejected before the first write.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw

from cq import runtime
from cq.errors import NotAStore, StoreError
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.embedded.file import Access

_LINGER_SECONDS = 10.0
# Versions ahead of the clock grow by this share of the time that passes, so that the clock catches up with them.
_AHEAD_SHARE = 0.9
_IN_MODIFY = 0x2
_POLL_SECONDS = 0.005
_NAME = slice(1, 8)  # identifies the file; commits write the byte before it to notify
_MAGIC = b"cq-lock"
_VERSION = slice(8, 16)  # version of the latest commit
_METADATA_CHANGED = slice(16, 24)  # version of the latest commit that changes the metadata version
_LENGTH = 24


class LockFile:
    """One process's handle of the lock file: an exclusive lock for one caller at a time, and announced versions.

    `flock` wakes a waiting process as soon as the lock is free, but has no timeout. So if the lock is not free at once,
    a helper thread calls `flock`, and the caller waits for the thread.
    """

    def __init__(self, store: Path, access: Access) -> None:
        self.store = store
        self.path = store.with_name(f"{store.name}-lock")
        try:
            descriptor = _open(self.path, access)
        except OSError as error:
            raise NotAStore(
                f"{self.path} cannot be opened ({error.strerror}): check its permissions"
            ) from None
        try:
            _prepare(descriptor)
            self._content = mmap.mmap(descriptor, _LENGTH, prot=mmap.PROT_READ)
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"{self.path} cannot be made ({error.strerror}): check its disk") from None
        self.descriptor = descriptor
        # Reentrant: the garbage collector may close a store in a thread that holds it.
        self._changed = runtime.InterruptibleCondition(threading.RLock())
        self._has_helper = False
        # While the helper calls `flock`, no other thread may lock or unlock the file.
        self._is_helper_locking = False
        self._is_wanted = False  # a caller waits for the result of the helper
        self._is_closed = False
        self._error: OSError | None = None
        # The latest version that this process has read from SQLite, and its metadata version. One reference, so that
        # threads need no lock; `known` detects an old value.
        self._read: tuple[int, bytes | None] | None = None
        # A version, and the time by `runtime.monotonic` at which this process has found it.
        self._found = self.announced(), runtime.monotonic()

    def acquire(self, seconds: float) -> bool:
        """Wait for the lock, for at most `seconds`; return whether it is held. Raises `apsw.Error`."""
        try:
            return (not self._is_helper_locking and self._acquire_at_once()) or self._wait(seconds)
        except OSError as error:
            raise _storage_failure("locked", error) from error

    def release(self) -> None:
        """Unlock the file, if this process has locked it."""
        if not self._is_helper_locking:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

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
        """A message with the remedy if another process holds the lock."""
        return (
            f"{self.path} is held by another process: nothing was committed; `fuser -v {self.path}` names it; check "
            "whether it is stopped, or should not use the store, and end it"
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

    def known(self) -> tuple[int, bytes | None] | None:
        """A version at or after all returned commits, and its metadata version, if known."""
        # Read first: a metadata change before this version is then announced as well.
        announced = self.announced()
        if self._read is None:
            return None
        version, metadata = self._read
        return None if self.metadata_changed() > version else (max(version, announced), metadata)

    def note_read(self, version: int, metadata: bytes | None) -> None:
        """Note a version and its metadata version, as read from SQLite."""
        self._read = version, metadata

    def next_version(self, last: int) -> int:
        """The version of the next commit, about the time in microseconds. The caller holds the lock.

        While the clock is behind the versions, as it was set back, they grow nearly as fast as time. If they stood
        still, notes of dead workers would never be old, and operation ids never be removed.
        """
        # Later than an announced version, even if its commit failed: it may be the read version of a transaction.
        latest, now = max(last, self.announced()), runtime.monotonic()
        version, since = self._found
        version += int((now - since) * _AHEAD_SHARE * VERSIONS_PER_SECOND)
        if latest > version:
            self._found = latest, now
        return max(latest + 1, runtime.time_ns() // 1000, version)

    def notify(self) -> None:
        """Wake all listeners. If the disk is full, they notice the commit at their next regular check."""
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, b"\0", 0)

    def close(self) -> None:
        """Close the descriptors."""
        self._content.close()
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            # Else the helper closes it after its call: the system could give the number to another file.
            if not self._is_helper_locking:
                os.close(self.descriptor)
            self._changed.notify_all()

    def abandon(self) -> None:
        """Close the file in a forked child, which has no helper thread, and where the condition may stay locked."""
        self._content.close()
        if not self._is_closed:
            self._is_closed = True
            os.close(self.descriptor)

    # The lock

    def _acquire_at_once(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            if not self._is_helper_locking:
                self._start_helper_call()
            self._is_wanted = True
            try:
                is_answered = self._changed.wait_for(lambda: not self._is_helper_locking, seconds)
            except BaseException:
                if not self._is_helper_locking:
                    self.release()
                raise
            finally:
                self._is_wanted = False
            error, self._error = self._error, None
            if error is not None:
                raise error
            return is_answered

    def _start_helper_call(self) -> None:
        self._is_helper_locking = True
        if self._has_helper:
            self._changed.notify_all()
        else:
            try:
                threading.Thread(target=self._run_helper, name="cq-lock", daemon=True).start()
            except RuntimeError as error:
                self._is_helper_locking = False
                raise OSError(
                    errno.EAGAIN, str(error)
                ) from error  # fails the commits, as other errors of the file
            self._has_helper = True

    def _run_helper(self) -> None:
        """Acquire the lock on request. A lock is released if its caller no longer waits."""
        while self._is_needed():
            error = None
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            except OSError as caught:
                error = caught
            with self._changed:
                if self._is_closed:
                    os.close(self.descriptor)
                elif self._is_wanted:
                    self._error = error
                elif error is None:
                    fcntl.flock(self.descriptor, fcntl.LOCK_UN)
                self._is_helper_locking = False  # last: `acquire` reads it without holding the condition
                self._changed.notify_all()

    def _is_needed(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_helper_locking or self._is_closed, _LINGER_SECONDS)
            self._has_helper = self._is_helper_locking
            return self._has_helper


def _open(path: Path, access: Access) -> int:
    """Open the lock file, or create it; raises `NotAStore` for a file of another kind."""
    try:
        return access.create(path)
    except FileExistsError:
        return _open_existing(path, access)


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
    is_named = content[_NAME] in (_MAGIC, bytes(len(_MAGIC)))  # zeros: a crash in `_prepare`
    if content and not (len(content) == _LENGTH and content[0] == 0 and is_named):
        return "it has other content"
    return ""


def _storage_failure(done: str, error: OSError) -> Exception:
    """The error for a lock file that cannot be used: a commit fails with it as with an error of SQLite."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    failure = apsw.exception_for(apsw.SQLITE_FULL if is_full else apsw.SQLITE_IOERR_WRITE)
    failure.args = (f"its lock file cannot be {done} ({error.strerror})",)
    return failure


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
