"""The processes of the demo of cells: writers, each of which goes through a list of writes, movers, and workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Event, Thread
from typing import Final

import cq
from cq import codec
from cq.observers.worker import Worker
from cq.store.api import Database
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""What each cell counts, and what it is forwarded into."""
ALL: Final = "all"
"""The key of the number of all writes; the others are users."""
_POSITION: Final = b"demo_cells/writer/"
_POSITION_EVERY: Final = 20
_CONTENT: Final = b"." * 100
_PATIENCE: Final = 1.0


@dataclass(frozen=True)
class WriteLoad:
    """What is written: the same whoever goes on with it, as it is drawn from a seed.

    Attributes:
        seed: of all that is drawn.
        users: how many there are.
        number: of writes of each writer.
    """

    seed: int
    users: int
    number: int

    def writes(self, writer: int) -> Iterator[tuple[str, str]]:
        """The (user, what) of a writer's writes."""
        rng = Random(f"{self.seed} writer {writer}")  # noqa: S311 - a load that can be repeated
        for index in range(self.number):
            yield f"user {rng.randrange(self.users)}", f"{writer}-{index}"


@dataclass(frozen=True)
class Writer:
    """Writes for users wherever they are, each write once and under the next id of its user.

    Attributes:
        url: of the directory's store.
        load: what is written.
        writer: which part of it.
    """

    url: str
    load: WriteLoad
    writer: int

    def run(self, stop: Event) -> None:
        """Go on behind what a writer that was killed has noted; what it has written beyond that is found there."""
        db = cq.open(self.url)
        with cq.Cells(db) as cells:
            done = read_position(db, self.writer)
            for index, (user, what) in enumerate(self.load.writes(self.writer)):
                if index < done:
                    continue
                while not self._write(cells, user, what):
                    if stop.is_set():
                        return
                if (index + 1) % _POSITION_EVERY == 0 or index + 1 == self.load.number:
                    _note_position(db, self.writer, index + 1)

    def _write(self, cells: cq.Cells, user: str, what: str) -> bool:
        """Write something; False if that is to be tried again."""
        try:
            cells.transact(user, lambda data: write_once(data, what), timeout=_PATIENCE)
        except cq.UserNotPlaced:
            cells.place(user)
        except cq.UserMoving:
            cells.resume_moves()  # whoever moves the user may have been killed
        else:
            return True
        return False


def write_once(data: cq.UserData, what: str) -> None:
    """What an application does in a transaction of a user: it keeps something, and counts it."""
    key = data.prefix + what.encode()
    if (
        data.tr.get(key).value is None
    ):  # else it is done, and the commit's answer was lost, or the writer killed
        number = data.next_id()
        data.tr.set(key, codec.encode([number, _CONTENT]))
        cq.CombineQueue(QUEUE).add(data.tr, {ALL: 1, data.user: 1})


@dataclass(frozen=True)
class CellWorkers:
    """A worker for each of several stores, in one process.

    Attributes:
        urls: of the stores.
    """

    urls: tuple[str, ...]

    def run(self, stop: Event) -> None:
        """Work until told to stop."""
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
    """How many of its writes a writer has noted."""
    stored = transact(db, lambda tr: tr.get(_POSITION + str(writer).encode()).value)
    return 0 if stored is None else int(stored)


def _note_position(db: Database, writer: int, done: int) -> None:
    transact(db, lambda tr: tr.set(_POSITION + str(writer).encode(), str(done).encode()))


@dataclass(frozen=True)
class Mover:
    """Moves users from cell to cell, and goes on with moves of others that were killed.

    Attributes:
        url: of the directory's store.
        load: whose users are moved.
        pause: seconds between two moves.
    """

    url: str
    load: WriteLoad
    pause: float

    def run(self, stop: Event) -> None:
        """Move users until told to stop."""
        db = cq.open(self.url)
        rng = Random()  # noqa: S311 - whom it moves, and where, is as good as any
        with cq.Cells(db) as cells:
            names = [each.name for each in cells.cells()]
            while not stop.is_set():
                cells.resume_moves()
                with suppress(cq.UserNotPlaced):
                    cells.move(f"user {rng.randrange(self.load.users)}", rng.choice(names))
                stop.wait(self.pause)
