"""A process that commits, and at one of SQLite's steps to the disk sends itself a signal: `STORE SEED SIGNAL STEP`.

It prints `WRITER NUMBER VERSIONSTAMP` for each commit that has returned.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from typing import Any

from cq.store.embedded import Database, wal
from tests.crash import load, vfs

WRITERS, COMMITS = 2, 30


def main(store: str, seed: str, number: str, step: str) -> None:
    """Commit in threads until done, or dead."""
    wal.CHECKPOINT_PAGES, wal.LIMIT_PAGES = 40, 50
    steps = itertools.count(1)

    def count(*_: Any) -> int:
        if next(steps) == int(step):
            # To this thread: another one that takes the signal may be scheduled after this one has committed.
            signal.pthread_kill(threading.get_ident(), int(number))
        return 0

    vfs.install(count)
    with Database(store) as db:
        load.commit_in_threads(db, int(seed), WRITERS, range(COMMITS), _report)


def _report(writer: int, number: int, stamp: bytes) -> None:
    os.write(1, b"%d %d %s\n" % (writer, number, stamp.hex().encode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
