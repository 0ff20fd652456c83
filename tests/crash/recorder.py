"""A process that commits to a store and notes all that SQLite and cq do to the disk: `FOLDER SEED POWER_SAFE NOTES`.

The notes are a list of events in CBOR: those of `tests.crash.vfs`, what Python itself does to files, and `returned` for
each commit that has returned, with its versionstamp.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cbor2

from cq.store.embedded import Database, wal
from tests.crash import load, vfs

_WRITERS, _ROUNDS, _COMMITS = 3, 3, 25
Event = tuple[Any, ...]


def main(folder: str, seed: str, power_safe: str, notes: str) -> None:
    """Open the store, commit in threads, close it, and again; write the notes down."""
    # Often enough for logs that are written back, and begun anew, while commits go on.
    wal.CHECKPOINT_PAGES, wal.LIMIT_PAGES = 40, 50
    events: list[Event] = []

    def note(*event: Any) -> int:
        events.append(event)
        return 0

    vfs.install(note)
    _note_python(Path(folder), events)
    for number in range(_ROUNDS):
        with Database(Path(folder) / "store.db", power_safe=power_safe == "True") as db:
            note("opened")
            numbers = range(number * _COMMITS, (number + 1) * _COMMITS)
            load.commit_in_threads(db, int(seed), _WRITERS, numbers, partial(note, "returned"))
    with open(notes, "wb") as file:
        cbor2.dump(events, file)


def _note_python(folder: Path, events: list[Event]) -> None:
    """Note what cq does to files by itself."""
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def noted_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        (path,) = (path for path in [folder, *folder.iterdir()] if os.path.samestat(status, path.stat()))
        events.append(("sync", str(path)))
        fsync(descriptor)

    def noted_replace(old: Any, new: Any) -> None:
        events.append(("rename", str(old), str(new)))
        replace(old, new)

    def noted_unlink(path: Any) -> None:
        if os.path.exists(path):
            events.append(("delete", str(path), False))
        unlink(path)

    os.fsync, os.replace, os.unlink = noted_fsync, noted_replace, noted_unlink  # type: ignore[assignment]


if __name__ == "__main__":
    main(*sys.argv[1:])
