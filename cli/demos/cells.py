"""`cq demo cells`: users write and are moved between stores while all processes are killed, and no write is lost.

Writers and movers run at the same time. A worker for each store forwards the counts of the cells to the store with the
directory. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

import cq
from cq.admin.queue_status import is_drained
from cq.cells.records import HERE, Fence
from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.harness.demo import Demo, compare, killed, numbered
from cq.cli.demos.harness.roles import Steps, run_worker
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import cell as cellkeys
from cq.keys.link import LinkKeys
from cq.observers.links import spec as links
from cq.store.api import Database
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

QUEUE: Final = "demo_writes"
"""The queue of counts in each cell, and the queue that they are forwarded into."""
ALL: Final = "all"
"""The key with the number of all writes; the other keys are users."""
_URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""
_POSITION_EVERY: Final = 20
_PAUSE: Final = 0.05  # seconds between two moves
_CONTENT: Final = b"." * 100
_PATIENCE: Final = 1.0


@dataclass
class CellDemo(Demo):
    """The demo; its fields are the options of the command."""

    number: int
    users: int
    stores: int
    writers: int
    movers: int
    folder: Path | None
    store: str | None

    def start(self, stack: ExitStack, folder: Path, rng: Random) -> None:
        kept = self.folder or folder
        kept.mkdir(parents=True, exist_ok=True)
        url = self.store or f"embedded:{kept.resolve() / 'directory.db'}"
        os.environ[_URL_ENV] = url  # inherited by the workers, which forward to it
        self.db = cq.open(url)
        self._cells = stack.enter_context(cq.Cells(self.db))
        urls = self._make_cells(kept.resolve())
        users = [f"user {number}" for number in range(self.users)]
        # The positions are in another store than the writes, and written for many of them.
        self.steps = Steps.of_parts(
            folder,
            b"demo_cells/",
            [
                [(rng.choice(users), f"{writer}-{index}") for index in range(self.number)]
                for writer in range(self.writers)
            ],
        )
        self.work = numbered("writer", (partial(write, url=url, steps=each) for each in self.steps))
        # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
        work = partial(run_worker, queues=[QUEUE], identity="demo")
        self.services = {
            **{f"worker of {name}": partial(work, url=each) for name, each in urls.items()},
            "worker of the directory": partial(work, url=url),
            **numbered("mover", [partial(move_users, url=url, users=users)] * self.movers),
        }
        self.show_progress(stack, "writes done")

    def _make_cells(self, folder: Path) -> dict[str, str]:
        """Create the cells and their queues; returns {cell: URL of its store}."""
        if self._cells.cells():
            raise InvalidConfiguration("the store has cells, which the demo must not use: name another store")
        cq.configure(self.db, QUEUE)
        self._names = [f"cell-{number + 1}" for number in range(self.stores)]
        for name in self._names:
            self._cells.add_cell(name, f"embedded:{folder / name}.db")
            cq.configure(self._cells.store(name), QUEUE, links=[links.queue(url_env=_URL_ENV)])
        return {each.name: each.url for each in self._cells.cells()}

    def is_settled(self) -> bool:
        # The receiving store last: a count that leaves a cell after the check of the receiver would be missed.
        return all(_is_idle(self._cells.store(name)) for name in self._names) and _is_idle(self.db)

    def recount(self) -> dict[str, Any]:
        self._cells.resume_moves()  # of movers that were stopped
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for steps in self.steps:
            for user, text in steps:
                wanted[user].add(text)
        placed = {user for name in self._names for user in self._cells.directory.users_in(name)}
        _check(placed <= wanted.keys(), "there are users without writes")
        moves = sum(self._check_user(user, texts) for user, texts in wanted.items())
        counts = {user: len(texts) for user, texts in wanted.items()}
        writes = sum(counts.values())
        compare("the totals", dict(cq.CombineQueue(QUEUE).scan(self.db)), {**counts, ALL: writes})
        found = {each.name: each.users for each in self._cells.cells()}
        return {"writes": writes, "users": sum(found.values()), "moves": moves, "cells": found}

    def _check_user(self, user: str, wanted: set[str]) -> int:
        """Check that the writes of a user are in the user's cell only, each once; returns the moves of the user."""
        record = self._cells.directory.record(user)
        _check(not record.is_moving, f"the move of {user} is not done")
        encoded = cellkeys.encoded_user(user)
        prefix = cellkeys.data(encoded)
        for name in self._names:
            db = self._cells.store(name)
            fence = transact(db, lambda tr: tr.get(cellkeys.fence(encoded)).value)
            is_here = fence is not None and Fence.from_bytes(fence) == Fence(HERE, record.epoch)
            _check(is_here == (name == record.cell), f"{user} is in {record.cell}, and {name} says otherwise")
            rows = scan_rows(db, prefix, cellkeys.latest_id(encoded))
            found = {key.removeprefix(prefix).decode(): codec.decode(value)[0] for key, value in rows}
            if name == record.cell:
                _check(found.keys() == wanted, f"{len(wanted - found.keys())} writes of {user} are lost")
                ids = list(range(1, len(wanted) + 1))
                _check(sorted(found.values()) == ids, f"the ids of {user} have gaps")
            else:
                _check(not found, f"{name} has {len(found)} writes of {user}, who is in {record.cell}")
        return record.epoch - 1

    def show(self, figures: Mapping[str, Any]) -> None:
        print_table(["cell", "users"], figures["cells"].items(), right=["users"])
        note(
            f"{quantity(figures['writes'], 'write')} of {quantity(figures['users'], 'user')}, "
            f"who moved {quantity(figures['moves'], 'time')}, in {figures['seconds']:.1f} s, "
            f"with {killed(figures)}: all as recounted"
        )


def _is_idle(db: Database) -> bool:
    """Whether all counts of a store are combined and forwarded."""
    begin, end = LinkKeys(QUEUE, "forward").all_rows()
    return is_drained(db, QUEUE) and not transact(
        db, lambda tr: tr.snapshot.get_range(begin, end, limit=1).to_list()
    )


def _check(holds: bool, difference: str) -> None:
    if not holds:
        raise DemoDiffers(f"not as recounted: {difference}")


# The processes


def write(stop: Event, *, url: str, steps: Steps) -> None:
    """Do each remaining write once, in the current cell of the user, under the next id of the user.

    Writes after the position of a killed writer may exist already: `write_once` detects them.
    """
    db = cq.open(url)
    with cq.Cells(db) as cells:
        for index, (user, text) in steps.left(db):
            while not _try(cells, user, text):
                if stop.is_set():
                    return
            if (index + 1) % _POSITION_EVERY == 0 or index + 1 == steps.number:
                transact(db, partial(steps.advance, done=index + 1))


def _try(cells: cq.Cells, user: str, text: str) -> bool:
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


def move_users(stop: Event, *, url: str, users: list[str]) -> None:
    """Move random users to random cells until `stop` is set, and finish the moves of killed movers."""
    rng = Random()  # noqa: S311 - the moves need not be repeatable
    with cq.Cells(cq.open(url)) as cells:
        names = [each.name for each in cells.cells()]
        while not stop.is_set():
            cells.resume_moves()
            with suppress(cq.UserNotPlaced):
                cells.move(rng.choice(users), rng.choice(names))
            stop.wait(_PAUSE)
