"""Checks of `cq doctor` for an embedded store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from cq import keys, runtime
from cq.errors import StoreError
from cq.plain_text import size
from cq.store import open as open_store
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.embedded.file import PAGE_BYTES, check
from cq.store.space import Space
from cq.store.transact import transact

ROOM: Final = "room"
"""The name of the check whose failure does not prevent the others."""
ROOM_BYTES: Final = 384_000_000
"""Recommended free space: the log alone may take more than half of it before it is written back."""
FULL: Final = 0.9
"""The share of SQLite's largest file size above which the check fails."""
_AHEAD_SECONDS: Final = 1.0


class EmbeddedStore:
    """An embedded store to check; `db` is set by `open`."""

    db: Any

    def __init__(self, path: str) -> None:
        self._path = Path(os.path.realpath(path))

    def before(self) -> dict[str, Callable[[], str]]:
        """The checks that do not open the store."""
        return {"store file": self._file, ROOM: self._room}

    def exists(self) -> bool:
        """Whether the file exists."""
        return check(self._path)

    def open(self) -> Any:
        """Open the file for reading: not even a full disk prevents it."""
        self.db = open_store(self._path, read_only=True, prefix=keys.ROOT)
        return self.db

    def close(self) -> None:
        """Close the file, if it is open."""
        if hasattr(self, "db"):
            self.db.close()

    def after(self) -> dict[str, Callable[[], str]]:
        """The checks of the open store."""
        return {"clock": self._clock}

    def of_queue(self, name: str, space: Space) -> dict[str, Callable[[], str]]:
        """The checks of a queue that only this kind of store has: none."""
        return {}

    def _file(self) -> str:
        if not check(self._path):
            return f"{self._path} does not exist yet: it is created at its first use"
        log = self._path.with_name(f"{self._path.name}-wal")
        stored = sum(file.stat().st_size for file in (self._path, log) if file.exists())
        most = _max_file_bytes()
        if stored > FULL * most:
            raise StoreError(
                f"{self._path} has {size(stored)}, and SQLite takes {size(most)}: move to a cluster"
            )
        return f"{self._path}, {size(stored)} of at most {size(most)}"

    def _room(self) -> str:
        folder = next(folder for folder in self._path.parents if folder.exists())
        free = shutil.disk_usage(folder).free
        found = f"{size(free)} are free in {folder}"
        if free < ROOM_BYTES:
            raise StoreError(f"{found}: make room, for {size(ROOM_BYTES)} at least")
        return found

    def _clock(self) -> str:
        version: int = transact(self.db, lambda tr: tr.get_read_version().wait())
        ahead = version / VERSIONS_PER_SECOND - runtime.time()
        if ahead > _AHEAD_SECONDS:
            # No fault: versions go on, nearly as fast as time, until the clock has caught up.
            return f"versions are {ahead:,.0f} s ahead of this machine's clock, which was set back"
        return "versions follow this machine's clock"


def _max_file_bytes() -> int:
    """The largest file size that this SQLite supports."""
    with closing(apsw.Connection(":memory:")) as connection:
        return int(connection.execute("PRAGMA max_page_count").get) * PAGE_BYTES
