"""The settings file: read only if no user except its reader and root could have written it.

Settings name code that commands import, and the store of every command. So a file that another user has put into
the current folder, for example a shared one, must not be read. A file that `$CQ_CONFIG` names is the choice of the
caller: its owner is not checked.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from cq.errors import InvalidConfiguration

CONFIG_ENV: Final = "CQ_CONFIG"
"""The environment variable with the path of another file."""
DEFAULT_FILE: Final = "cq.toml"
"""The default file, in the current folder."""
MAX_BYTES: Final = 65_536

_ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class InvalidSettings(InvalidConfiguration):
    """The settings file is invalid; the message names the file and the key."""


def settings_file() -> str | None:
    """The path of the settings file, None if there is no file."""
    if named := os.environ.get(CONFIG_ENV):
        return os.path.expanduser(named)
    return DEFAULT_FILE if os.path.lexists(DEFAULT_FILE) else None


def read_settings(path: str) -> bytes:
    """The content of the file; raises `InvalidSettings` if it cannot be read or cannot be trusted."""
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())  # of the open file: the path may lead to another file by now
            if not stat.S_ISREG(status.st_mode):
                raise InvalidSettings(
                    f"{path} is not a regular file: settings are read from regular files only"
                )
            if not os.environ.get(CONFIG_ENV):
                # The owner of a symbolic link decides which file it leads to: check both owners.
                _check_trusted(path, status, os.lstat(path).st_uid)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(
            f"cannot read the settings in {path}: {error.strerror}; correct that, or set ${CONFIG_ENV} to another file"
        ) from error
    if len(content) > MAX_BYTES:
        raise InvalidSettings(f"{path} exceeds the limit of {MAX_BYTES:,} bytes: it is not a settings file")
    return content


def _open(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe without a writer would block.
    return os.open(path, flags | os.O_NONBLOCK)


def _check_trusted(path: str, status: os.stat_result, link_owner: int) -> None:
    """Raise `InvalidSettings` unless only the user and root can write the file."""
    for owner in (status.st_uid, link_owner):
        if owner not in (os.geteuid(), _ROOT):
            raise InvalidSettings(
                f"{path} in the current folder belongs to another user (uid {owner}), and settings can name code: if "
                f"you trust it, set ${CONFIG_ENV}={path}"
            )
    if status.st_mode & _OTHERS_WRITE:
        raise InvalidSettings(
            f"{path} in the current folder can be written by other users, and settings can name code: "
            f"run `chmod go-w {path}`"
        )
