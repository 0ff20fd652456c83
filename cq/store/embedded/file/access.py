"""Owner, group and permissions of a store, and which files beside it may be trusted.

SQLite creates the files beside a store (`-wal`, `-shm`) with the permissions of the store. The lock file gets the same
permissions, so that the permissions of the store alone control who may use it. In a directory like `/tmp`, another user
may place such a file as a trap: a file whose owner may not write the store is rejected.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

PRIVATE = 0o600
"""The permissions of a new store, unless the caller shares it."""

_PERMISSIONS = 0o666  # a store is never executable
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


def new(mode: int) -> Access:
    """The access of a store that this process creates."""
    return Access(os.geteuid(), _SYSTEMS_CHOICE, mode)


def existing(path: Path) -> Access:
    """The access of the store at a path."""
    status = path.stat()
    return Access(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode) & _PERMISSIONS)
