"""The processes of the demo of cells: writers, each with a list of writes, and movers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from threading import Event
from typing import Final

import cq
from cq.cli.demos.harness.position import Position
from cq.encoding import codec
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
ALL: Final = "all"
"""The key with the number of all writes; the other keys are users."""
_POSITION_EVERY: Final = 20
_PAUSE: Final = 0.05  # seconds between two moves
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
            position = writer_position(self.writer)
            done = transact(db, position.read)
            for index, (user, text) in enumerate(self.load.writes(self.writer)):
                if index < done:
                    continue
                while not self._write(cells, user, text):
                    if stop.is_set():
                        return
                if (index + 1) % _POSITION_EVERY == 0 or index + 1 == self.load.number:
                    transact(db, partial(position.write, done=index + 1))

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


def writer_position(writer: int) -> Position:
    """The position of a writer: the number of its finished writes.

    It is behind the writer, because it lies in another store than the writes, and is written for many of them.
    """
    return Position(b"demo_cells/writer/%d" % writer)


def move_users(stop: Event, *, url: str, load: WriteLoad) -> None:
    """Move random users to random cells until `stop` is set, and finish the moves of killed movers."""
    rng = Random()  # noqa: S311 - the moves need not be repeatable
    with cq.Cells(cq.open(url)) as cells:
        names = [each.name for each in cells.cells()]
        while not stop.is_set():
            cells.resume_moves()
            with suppress(cq.UserNotPlaced):
                cells.move(f"user {rng.randrange(load.users)}", rng.choice(names))
            stop.wait(_PAUSE)
