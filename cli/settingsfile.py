"""The file of settings: read only if nobody but the user and root could have written it.

Settings name code that `cq worker` imports, and the store that every command uses. So a file that lies in the current
folder by chance, in a shared one for instance, must not be taken from another user. A file that `$CQ_CONFIG` names is
the user's own choice: its owner is not checked.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from cq.errors import InvalidConfiguration

CONFIG_ENV: Final = "CQ_CONFIG"
"""The environment variable that names another file."""
DEFAULT_FILE: Final = "cq.toml"
"""The file in the current folder."""
MAX_BYTES: Final = 65_536

_ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class InvalidSettings(InvalidConfiguration):
    """The file of settings is none; the message names it, and the key."""


def settings_file() -> str | None:
    """The path of the file that is read; None if there is none."""
    if named := os.environ.get(CONFIG_ENV):
        return os.path.expanduser(named)
    return DEFAULT_FILE if os.path.lexists(DEFAULT_FILE) else None


def read_settings(path: str) -> bytes:
    """The content of the file; raises `InvalidSettings` if it cannot be read, or must not be."""
    try:
        with open(path, "rb", opener=_open) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InvalidSettings(f"{path} is no regular file: settings are read from no other")
            if not os.environ.get(CONFIG_ENV):
                # The owner of a link decides which file is read.
                _check_trusted(path, found, os.lstat(path).st_uid)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSettings(
            f"cannot read the settings in {path}: {error.strerror}; mend that, or name another file in ${CONFIG_ENV}"
        ) from error
    if len(content) > MAX_BYTES:
        raise InvalidSettings(f"{path} exceeds the limit of {MAX_BYTES:,} bytes: it is no file of settings")
    return content


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would block


def _check_trusted(path: str, found: os.stat_result, link_owner: int) -> None:
    """Raise `InvalidSettings` unless only the user and root can write the file."""
    for owner in (found.st_uid, link_owner):
        if owner not in (os.geteuid(), _ROOT):
            raise InvalidSettings(
                f"{path} in the current folder belongs to another user (uid {owner}), and settings can name code: if "
                f"you trust it, set ${CONFIG_ENV}={path}"
            )
    if found.st_mode & _OTHERS_WRITE:
        raise InvalidSettings(
            f"{path} in the current folder can be written by other users, and settings can name code: "
            f"run `chmod go-w {path}`"
        )
