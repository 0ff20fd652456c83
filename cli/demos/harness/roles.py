"""The work of the processes of a demo: steps with a stored position, workers, and counted writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from mmap import mmap
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, NamedTuple, Self

import cq
from cq import runtime
from cq.observers.worker.worker import Worker
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

_VERSIONSTAMPED: Final = ("set_versionstamped_key", "set_versionstamped_value")
_WRITES: Final = frozenset(("set", "clear", "clear_range", "add", "compare_and_clear", *_VERSIONSTAMPED))


@dataclass(frozen=True)
class Steps:
    """The steps of a role, in a file, and the number of finished ones, in the store.

    The transaction that does a step also stores the position. So a restarted process continues there, and a step whose
    commit has lost its answer is not done twice.

    Attributes:
        path: path of the file, with a line of JSON for each step.
        number: number of the steps.
        key: key of the position.
    """

    path: Path
    number: int
    key: bytes

    @classmethod
    def stored(cls, path: Path, key: bytes, steps: Iterable[Any]) -> Self:
        """Write steps to a file. A role has only the path: a process would wait for a large argument at its start."""
        lines = [json.dumps(step) + "\n" for step in steps]
        path.write_text("".join(lines), encoding="utf-8")
        return cls(path, len(lines), key)

    @classmethod
    def of_parts(cls, folder: Path, keys: bytes, parts: Iterable[Iterable[Any]]) -> list[Self]:
        """The steps of several roles, with numbers in the names of their files and in their keys."""
        return [
            cls.stored(folder / f"part-{n}", keys + b"position/%d" % n, part) for n, part in enumerate(parts)
        ]

    def __iter__(self) -> Iterator[Any]:
        with self.path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    def left(self, db: Database) -> Iterator[tuple[int, Any]]:
        """The unfinished steps with their places."""
        return islice(enumerate(self), transact(db, self.done), None)

    def done(self, tr: TransactionRead) -> int:
        """The number of finished steps."""
        return int(tr.get(self.key).value or 0)

    def advance(self, tr: Transaction, done: int) -> None:
        """Store the number of finished steps."""
        tr.set(self.key, b"%d" % done)


class WriteCounts(NamedTuple):
    """Numbers of writes.

    Attributes:
        transactions: transactions with writes, committed or not.
        operations: writes in them: keys set, changed atomically or cleared, and ranges cleared.
    """

    transactions: int
    operations: int


class Meter:
    """Counts the writes of one role, in a file that its processes and their parent share.

    It has no lock: a killed process would never release it. Only one process of a role lives at a time.

    Args:
        path: path of the file, which is created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(16))

    def read(self) -> WriteCounts:
        """The number of writes until now."""
        return WriteCounts(*self._counts)

    def count(self, operations: int) -> None:
        """Count a transaction; callers in several threads must hold a lock."""
        self._counts[0] += 1
        self._counts[1] += operations

    @cached_property
    def _counts(self) -> memoryview:
        with self._path.open("r+b") as file:
            return memoryview(mmap(file.fileno(), 0)).cast("Q")


class CountedDatabase:
    """A database of either store whose writes a meter counts."""

    def __init__(self, db: Any, meter: Meter) -> None:
        self._db, self._meter, self._lock = db, meter, Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Any:
        """A transaction whose writes are counted when it is committed."""
        return _CountedTransaction(self._db.create_transaction(), self._meter, self._lock)


class _CountedTransaction:
    """A transaction that counts its writes."""

    def __init__(self, tr: Any, meter: Meter, lock: Lock) -> None:
        self._tr, self._meter, self._lock = tr, meter, lock
        self._operations = 0

    def __getattr__(self, name: str) -> Any:
        if name in _WRITES:
            self._operations += 1  # a caller gets such a method to call it once
        return getattr(self._tr, name)

    def commit(self) -> Any:
        operations, self._operations = self._operations, 0
        if operations:  # before the commit: a process that is killed during it has written, too
            with self._lock:
                self._meter.count(operations)
        return self._tr.commit()

    def on_error(self, error: Any) -> Any:
        self._operations = 0  # the next try writes them again
        return self._tr.on_error(error)


def run_worker(
    stop: Event, *, url: str, queues: Sequence[str], meter: Meter | None = None, identity: str | None = None
) -> None:
    """Run a worker until `stop` is set.

    Args:
        stop: set when the process must end.
        url: URL of the store.
        queues: names of queues; empty: all queues.
        meter: counts the writes; None: no counting.
        identity: identity of the worker: a restarted worker with the same identity gets its tasks at once.
    """
    db: Any = cq.open(url)
    worker = Worker(CountedDatabase(db, meter) if meter else db, queues=queues, identity=identity)

    def end() -> None:
        stop.wait()
        worker.stop()

    # The worker has the main thread: its errors end the process.
    runtime.start_thread(end, "stop")
    worker.run()
