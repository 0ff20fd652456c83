"""The processes of the demo of cells: writers, each with a list of writes, movers and workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Event, Thread
from typing import Final

import cq
from cq.encoding import codec
from cq.observers.worker.worker import Worker
from cq.store.api import Database
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
ALL: Final = "all"
"""The key with the number of all writes; the other keys are users."""
_POSITION: Final = b"demo_cells/writer/"
_POSITION_EVERY: Final = 20
_CONTENT: Final = b"." * 100
_PATIENCE: Final = 1.0


@dataclass(frozen=True)
class WriteLoad:
    """The writes of the demo, drawn from a seed: a restarted writer draws the same writes again.

    Attributes:
        seed: seed of all random choices.
        users: number of users.
        number: number of writes of each writer.
    """

    seed: int
    users: int
    number: int

    def writes(self, writer: int) -> Iterator[tuple[str, str]]:
        """The (user, text) of each write of a writer."""
        rng = Random(f"{self.seed} writer {writer}")  # noqa: S311 - a load that can be repeated
        for index in range(self.number):
            yield f"user {rng.randrange(self.users)}", f"{writer}-{index}"


@dataclass(frozen=True)
class Writer:
    """Writes each of its writes once, in the current cell of the user, under the next id of the user.

    Attributes:
        url: URL of the store with the directory.
        load: the writes of all writers.
        writer: number of this writer.
    """

    url: str
    load: WriteLoad
    writer: int

    def run(self, stop: Event) -> None:
        """Do all remaining writes, from the noted position of a killed writer on.

        Writes after that position may exist already: `write_once` detects them.
        """
        db = cq.open(self.url)
        with cq.Cells(db) as cells:
            done = read_position(db, self.writer)
            for index, (user, text) in enumerate(self.load.writes(self.writer)):
                if index < done:
                    continue
                while not self._write(cells, user, text):
                    if stop.is_set():
                        return
                if (index + 1) % _POSITION_EVERY == 0 or index + 1 == self.load.number:
                    _note_position(db, self.writer, index + 1)

    def _write(self, cells: cq.Cells, user: str, text: str) -> bool:
        """Do one write; returns False if it must be retried."""
        try:
            cells.transact(user, lambda data: write_once(data, text), timeout=_PATIENCE)
        except cq.UserNotPlaced:
            cells.place(user)
        except cq.UserMoving:
            cells.resume_moves()  # the process that moves the user may have been killed
        else:
            return True
        return False


def write_once(data: cq.UserData, text: str) -> None:
    """Store a text of a user, and count it, in one transaction, unless it is stored."""
    key = data.prefix + text.encode()
    if data.tr.get(key).value is None:  # else a killed writer stored it, or a commit whose answer was lost
        number = data.next_id()
        data.tr.set(key, codec.encode([number, _CONTENT]))
        cq.CombineQueue(QUEUE).add(data.tr, {ALL: 1, data.user: 1})


@dataclass(frozen=True)
class CellWorkers:
    """A worker for each of several stores, in one process.

    Attributes:
        urls: URLs of the stores.
    """

    urls: tuple[str, ...]

    def run(self, stop: Event) -> None:
        """Run the workers until `stop` is set."""
        workers = [Worker(cq.open(url), queues=[QUEUE], identity="demo") for url in self.urls]
        threads = [Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        stop.wait()
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


def read_position(db: Database, writer: int) -> int:
    """The noted position of a writer: the number of its finished writes."""
    stored = transact(db, lambda tr: tr.get(_POSITION + str(writer).encode()).value)
    return 0 if stored is None else int(stored)


def _note_position(db: Database, writer: int, done: int) -> None:
    transact(db, lambda tr: tr.set(_POSITION + str(writer).encode(), str(done).encode()))


@dataclass(frozen=True)
class Mover:
    """Moves random users to random cells, and finishes the moves of killed movers.

    Attributes:
        url: URL of the store with the directory.
        load: its users are moved.
        pause: seconds between two moves.
    """

    url: str
    load: WriteLoad
    pause: float

    def run(self, stop: Event) -> None:
        """Move users until `stop` is set."""
        db = cq.open(self.url)
        rng = Random()  # noqa: S311 - the moves need not be repeatable
        with cq.Cells(db) as cells:
            names = [each.name for each in cells.cells()]
            while not stop.is_set():
                cells.resume_moves()
                with suppress(cq.UserNotPlaced):
                    cells.move(f"user {rng.randrange(self.load.users)}", rng.choice(names))
                stop.wait(self.pause)
