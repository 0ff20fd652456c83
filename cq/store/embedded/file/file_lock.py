"""An operating system's file lock with a timeout, and the processes that hold it.

`flock` wakes a waiting process as soon as the lock is free, but has no timeout. So if the lock is not free at once, a
helper thread calls `flock`, and the caller waits for the thread.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable
from pathlib import Path

_LOCKS = Path("/proc/locks")
_LINGER_SECONDS = 10.0


class FileLock:
    """An exclusive lock of an open file, for one caller at a time. It owns the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        # Reentrant: the garbage collector may close a store in a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._has_helper = False
        # While the helper calls `flock`, no other thread may lock or unlock the file.
        self._is_helper_locking = False
        self._is_wanted = False  # a caller waits for the result of the helper
        self._is_closed = False
        self._error: OSError | None = None

    def acquire(self, seconds: float) -> bool:
        """Wait for the lock, for at most `seconds`; return whether it is held. Raises `OSError`."""
        if not self._is_helper_locking and self._acquire_at_once():
            return True
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

    def release(self) -> None:
        """Unlock the file, if this process has locked it."""
        if not self._is_helper_locking:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
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
        if not self._is_closed:
            self._is_closed = True
            os.close(self.descriptor)

    def _acquire_at_once(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _start_helper_call(self) -> None:
        self._is_helper_locking = True
        if self._has_helper:
            self._changed.notify_all()
        else:
            threading.Thread(target=self._run_helper, name="cq-lock", daemon=True).start()
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

    def holders(self) -> list[int]:
        """The processes that hold the lock; empty if the system hides them, such as processes outside a container."""
        try:
            lines = [line.split() for line in _LOCKS.read_text().splitlines()]
            status = os.fstat(self.descriptor)
        except OSError:
            return []
        return sorted(_holders(status, str(os.getpid()), lines))


def _holders(file: os.stat_result, pid: str, lines: Iterable[list[str]]) -> set[int]:
    """The processes that hold a lock of the file, or a lock that process `pid` waits for.

    A line is `4: FLOCK ADVISORY WRITE 17188 fe:00:2148371 0 EOF`. Below it, `4: -> FLOCK ...` is a waiting call.
    Some file systems show another device than `stat`: there, only the waiting calls identify the file.
    """
    number = f":{file.st_ino}"
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}{number}"
    found, holder = set(), 0
    for _, *fields in lines:
        is_waiting = fields[0] == "->"
        kind, _, _, owner, inode = fields[is_waiting:][:5]
        if not is_waiting:
            holder = int(owner)
        if kind == "FLOCK" and (inode.endswith(number) and owner == pid if is_waiting else inode == name):
            found.add(holder)
    return found - {0, -1}
