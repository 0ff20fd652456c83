"""A process whose disk fails: `STORE SEED WHAT`; it prints what its commits meet, a line of JSON each.

full            no file can grow any more, then there is room again
full-file       only the store's file cannot be written: what is in the log cannot be brought into it
sync-once       one commit's sync of the log fails
sync            from one commit on, no sync works, and the process dies
retry-once      one commit's sync fails; it is tried again, and the process dies
retry           the same, and no later sync works
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import cq
from cq.store.embedded import Database, FDBError, Transaction, wal
from cq.store.transact import transact
from tests.crash import load, vfs

COMMITS = 40
ONE = (1).to_bytes(8, "little")


class Disk:
    """The listener of the files."""

    def __init__(self) -> None:
        self.fails: Callable[..., bool] = lambda *event: False
        self.failed = 0

    def __call__(self, *event: Any) -> int:
        if not self.fails(*event):
            return 0
        self.failed += 1
        return vfs.FULL if event[0] == "write" else vfs.SYNC_FAILED

    def once(self, *event: Any) -> bool:
        """Fail the next sync of a log."""
        return is_log_sync(*event) and not self.failed


def grows(what: str, path: str, *details: Any) -> bool:
    """Whether a write makes a file longer."""
    return what == "write" and details[0] + len(details[1]) > os.stat(path).st_size


def is_store_write(what: str, path: str, *_: Any) -> bool:
    """Whether the store's file itself is written."""
    return what == "write" and path.endswith(".db")


def is_log_sync(what: str, path: str, *_: Any) -> bool:
    """Whether the log is synced."""
    return what == "sync" and path.endswith("-wal")


def main(store: str, seed: str, what: str) -> None:
    """Commit before, while and after the disk fails."""
    wal.CHECKPOINT_PAGES, wal.LIMIT_PAGES = 40, 50
    disk = Disk()
    vfs.install(disk)
    with Database(store) as db:
        commit(db, int(seed), 0, COMMITS)
        kinds = {"full": grows, "full-file": is_store_write, "sync-once": disk.once, "sync": is_log_sync}
        kinds |= {"retry-once": disk.once, "retry": is_log_sync}
        disk.fails = kinds[what]
        if what.startswith("retry"):
            count(db)
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "sync":
            commit(db, int(seed), 3, 1)
        commit(db, int(seed), 1, COMMITS if what.startswith("full") else 2)
        if what == "full":
            attempt(db, 9, 0, write_much)  # more than fits into what the log had before
        value = db[b"commit/0/0"]  # reading goes on
        say("read", value is not None)
        if what == "sync":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "full-file":
            return  # closing brings the log into the file if it can
        disk.fails = lambda *event: False
        commit(db, int(seed), 2, COMMITS)


def count(db: Database) -> None:
    """Add 1 to a number, without an operation id, as applications do; say after how many tries, and what is read."""
    tries = code = 0

    def run(tr: cq.Transaction) -> None:
        nonlocal tries
        tries += 1
        tr.add(b"count", ONE)

    try:
        transact(db, run)
    except FDBError as error:
        code = error.code
    say("counted", tries, code, int.from_bytes(db[b"count"] or b"", "little"))


def commit(db: Database, seed: int, writer: int, number: int) -> None:
    """Commit so many transactions, each tried once; say how each ended."""
    done = 0
    for _ in range(number):
        name = writer, done
        done += attempt(db, *name, lambda tr: load.write(tr, seed, name))  # noqa: B023 - runs at once


def attempt(db: Database, writer: int, number: int, write: Callable[[Transaction], object]) -> bool:
    """Commit a transaction, tried once, and say how it ended; whether it has committed."""
    tr = db.create_transaction()
    write(tr)
    stamp = tr.get_versionstamp()
    try:
        tr.commit().wait()
    except FDBError as error:
        say("failed", writer, number, error.code, str(error))
        return False
    say("returned", writer, number, stamp.value.hex())
    return True


def write_much(tr: Transaction) -> None:
    """Write about 2 MB."""
    for number in range(25):
        tr.set(b"much/%d" % number, bytes(80_000))


def say(*line: Any) -> None:
    """Print, whatever becomes of the process then."""
    os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
