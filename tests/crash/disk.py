"""A disk that may lose what was not synced, in whatever part: what a power failure leaves of a folder."""

from __future__ import annotations

import random
from typing import Any, Final

SECTOR: Final = 512
"""What a disk writes whole or not at all; of what was on its way, it may also leave garbage."""


class _File:
    """What is surely on the disk, and what was written since."""

    def __init__(self) -> None:
        self.synced = bytearray()
        self.since: list[tuple[int, bytes | None]] = []  # an offset and bytes, or a size to cut it to

    def sync(self) -> None:
        for offset, data in self.since:
            _put(self.synced, offset, data)
        self.since = []

    def after_loss(self, draw: random.Random, chances: list[float]) -> bytes:
        content = bytearray(self.synced)
        for offset, data in self.since:
            if data is None:
                if draw.random() < chances[0]:
                    _put(content, offset, None)
                continue
            at = 0
            while at < len(data):
                size = SECTOR - (offset + at) % SECTOR
                piece = data[at : at + size]
                (left,) = draw.choices([piece, None, draw.randbytes(len(piece))], chances)
                if left is not None:
                    _put(content, offset + at, left)
                at += size
        return bytes(content)


def _put(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """A folder, as it follows from the events that a recorder has noted."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self._synced: dict[str, _File] = {}
        self._since: list[dict[str, _File | None]] = []  # names, and what they stand for from then on

    def follow(self, what: str, path: str, *details: Any) -> None:
        """Take over an event."""
        if what == "open":
            if path not in self._files:
                self._name({path: _File()})
        elif what == "write":
            self._files[path].since.append((details[0], details[1]))
        elif what == "truncate":
            self._files[path].since.append((details[0], None))
        elif what == "rename":
            self._name({path: None, details[0]: self._files[path]})
        elif what == "delete":
            self._name({path: None})
            if details[0]:
                self._sync_names()
        elif path == self._folder:
            self._sync_names()
        else:
            self._files[path].sync()
            if path.endswith(("-wal", "-journal")):
                self._sync_names()  # SQLite does so when it has made one of these; later ones change nothing

    def after_loss(self, draw: random.Random) -> dict[str, bytes]:
        """What may be there after a power failure: names, and what is in the files.

        Of what was not synced nothing, everything, or some sectors are there, some of these as garbage. Names are there
        up to one moment since they were synced.
        """
        chances = draw.choice([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.6, 0.3, 0.1]])
        names = dict(self._synced)
        for changed in self._since[: draw.randint(0, len(self._since))]:
            _change(names, changed)
        return {path: file.after_loss(draw, chances) for path, file in names.items()}

    def _name(self, changed: dict[str, _File | None]) -> None:
        _change(self._files, changed)
        self._since.append(changed)

    def _sync_names(self) -> None:
        for changed in self._since:
            _change(self._synced, changed)
        self._since = []


def _change(names: dict[str, _File], changed: dict[str, _File | None]) -> None:
    for path, file in changed.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file
