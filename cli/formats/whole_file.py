"""Files that appear when they are complete."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def whole_file(path: str, mode: int | None = None) -> Iterator[Callable[[bytes], object]]:
    """A function that writes bytes into a file, which gets its name at the end of the block, if this has no error.

    Until then, a file that has this name stays as it is. A pipe or a device is written directly. Without `mode`, the
    file has the permissions of the former file, or the usual ones. Raises `OSError`.
    """
    former = _mode(path)
    if former is not None and not stat.S_ISREG(former):
        with open(path, "wb") as stream:
            yield stream.write
        return
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    unfinished = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as stream:
            if mode is not None or former is not None:
                os.fchmod(descriptor, mode if mode is not None else stat.S_IMODE(former or 0))
            yield stream.write
            stream.flush()
            os.fsync(descriptor)
        os.replace(unfinished, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, OSError) and error.filename == unfinished:
            error.filename = path
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
