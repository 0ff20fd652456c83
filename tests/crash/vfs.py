"""What SQLite does to the disk, seen and disturbed from below: a layer over its own access to files.

Installed in a process, it stands between SQLite and the system for every file that is opened from then on, and tells
what is written, synced, truncated and deleted before it is done. Whoever listens may have it fail.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, ClassVar, Final

import apsw

FULL: Final = apsw.SQLITE_FULL
SYNC_FAILED: Final = apsw.SQLITE_IOERR_FSYNC
_CREATED: Final = 0x4  # SQLITE_OPEN_CREATE

_INT, _POINTER, _INT64 = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64
_CLOSE = ctypes.CFUNCTYPE(_INT, _POINTER)
_WRITE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _INT64)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _POINTER, _INT64)
_SYNC = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)
_OPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_DELETE = ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.c_char_p, _INT)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods of version 3."""

    _fields_: ClassVar[Any] = [
        ("version", _INT),
        ("close", _POINTER),
        ("read", _POINTER),
        ("write", _POINTER),
        ("truncate", _POINTER),
        ("sync", _POINTER),
        ("others", _POINTER * 13),
    ]


class _Vfs(ctypes.Structure):
    """sqlite3_vfs of version 3."""

    _fields_: ClassVar[Any] = [
        ("version", _INT),
        ("file_bytes", _INT),
        ("max_path", _INT),
        ("next", _POINTER),
        ("name", ctypes.c_char_p),
        ("data", _POINTER),
        ("open", _POINTER),
        ("delete", _POINTER),
        ("others", _POINTER * 14),
    ]


Listener = Callable[..., int]
"""Gets what is about to be done and its arguments; returns 0 to let it be done, else SQLite's code of the error.

    "open", path, whether it is made          "write", path, offset, bytes
    "delete", path, whether it is synced      "truncate", path, size
                                              "sync", path
"""


def install(listener: Listener) -> None:
    """Have the listener told, in this process, of all that is done to files that SQLite opens from now on."""
    _Layer(listener)


def _default_vfs() -> _Vfs:
    """SQLite's own access to files, in place."""
    found = _POINTER()
    apsw.Connection(":memory:").file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(found))
    assert found.value is not None
    return _Vfs.from_address(found.value)


class _Layer:
    """Changes SQLite's own access to files, for as long as the process lives."""

    _kept: ClassVar[list[_Layer]] = []

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._paths: dict[int, str] = {}
        self._tables: dict[int, _Methods] = {}
        vfs = _default_vfs()
        self._below_open, self._below_delete = _OPEN(vfs.open), _DELETE(vfs.delete)
        self._callbacks = [_OPEN(self._open), _DELETE(self._delete)]
        self._kept.append(self)
        vfs.open, vfs.delete = (_address(callback) for callback in self._callbacks)

    def _open(self, vfs: int, name: int, file: int, flags: int, out: int) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        made = bool(flags & _CREATED) and not os.path.exists(path)
        code = self._listener("open", path, made) if path else 0
        code = code or self._below_open(vfs, name, file, flags, out)
        if not code and path:
            self._paths[file] = path
            self._watch(file)
        return code

    def _delete(self, vfs: int, name: bytes, sync: int) -> int:
        return self._listener("delete", name.decode(), bool(sync)) or self._below_delete(vfs, name, sync)

    def _watch(self, file: int) -> None:
        """Give an open file another table of methods, in which some are replaced."""
        pointer = ctypes.cast(file, ctypes.POINTER(_POINTER))
        below = pointer[0]
        assert below is not None
        if below not in self._tables:
            self._tables[below] = self._table(below)
        pointer[0] = ctypes.addressof(self._tables[below])

    def _table(self, below: int) -> _Methods:
        methods = _Methods.from_buffer_copy(_Methods.from_address(below))
        close, write = _CLOSE(methods.close), _WRITE(methods.write)
        truncate, sync = _TRUNCATE(methods.truncate), _SYNC(methods.sync)

        def on_close(file: int) -> int:
            self._paths.pop(file, None)
            return int(close(file))

        def on_write(file: int, data: int, size: int, offset: int) -> int:
            code = self._listener("write", self._paths[file], offset, ctypes.string_at(data, size))
            return code or int(write(file, data, size, offset))

        def on_truncate(file: int, size: int) -> int:
            return self._listener("truncate", self._paths[file], size) or int(truncate(file, size))

        def on_sync(file: int, flags: int) -> int:
            return self._listener("sync", self._paths[file]) or int(sync(file, flags))

        callbacks = _CLOSE(on_close), _WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync)
        self._callbacks += callbacks
        methods.close, methods.write, methods.truncate, methods.sync = map(_address, callbacks)
        return methods


def _address(callback: Any) -> int | None:
    return ctypes.cast(callback, _POINTER).value
