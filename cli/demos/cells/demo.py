"""The demo of cells: users write and are moved while all processes are killed, and no write is lost.

Writers and movers run at the same time. A worker for each store forwards the counts of the cells to the store with the
directory. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import cq
from cq.admin.queue_status import is_drained
from cq.cells.records import HERE, Fence
from cq.cli.demos.cells.roles import ALL, QUEUE, WriteLoad, Writer, move_users, writer_position
from cq.cli.demos.harness.crew import DemoDiffers
from cq.cli.demos.harness.demo import Demo, compare, killed, shown_progress
from cq.cli.demos.harness.worker import run_worker
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import cell as cellkeys
from cq.keys.export import ExportKeys
from cq.observers.forward.observer import forward_spec
from cq.store.api import Database
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

_URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""


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

    def start(self, stack: ExitStack, rng: Random) -> None:
        folder = self.folder or Path(stack.enter_context(TemporaryDirectory(prefix="cq-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        url = self.store or f"embedded:{folder / 'directory.db'}"
        os.environ[_URL_ENV] = url  # inherited by the workers, which forward to it
        self._db = cq.open(url)
        self._cells = stack.enter_context(cq.Cells(self._db))
        self._names = self._make_cells(folder)
        self._load = WriteLoad(rng.randrange(2**32), self.users, self.number)
        self.work = {
            f"writer {number + 1}": Writer(url, self._load, number).run for number in range(self.writers)
        }
        urls = {"the directory": url, **{each.name: each.url for each in self._cells.cells()}}
        # With an identity: a restarted worker gets the tasks of its killed predecessor at once.
        work = partial(run_worker, queues=[QUEUE], identity="demo")
        move = partial(move_users, url=url, load=self._load)
        self.services = {
            **{f"worker of {name}": partial(work, url=each) for name, each in urls.items()},
            **{f"mover {number + 1}": move for number in range(self.movers)},
        }
        self._show_progress = stack.enter_context(shown_progress("writes done"))

    def _make_cells(self, folder: Path) -> list[str]:
        """Create the cells and their queues; returns the names of the cells."""
        if self._cells.cells():
            raise InvalidConfiguration("the store has cells, which the demo must not use: name another store")
        cq.configure(self._db, QUEUE)
        names = [f"cell-{number + 1}" for number in range(self.stores)]
        for name in names:
            self._cells.add_cell(name, f"embedded:{folder / name}.db")
            cq.configure(self._cells.store(name), QUEUE, observers=[forward_spec(url_env=_URL_ENV)])
        return names

    def look(self) -> None:
        positions = map(writer_position, range(self.writers))
        done = sum(transact(self._db, each.read) for each in positions)
        self._show_progress(done, self.number * self.writers)

    def is_settled(self) -> bool:
        # The receiving store last: a count that leaves a cell after the check of the receiver would be missed.
        return all(_is_idle(self._cells.store(name)) for name in self._names) and _is_idle(self._db)

    def recount(self) -> dict[str, Any]:
        self._cells.resume_moves()  # of movers that were stopped
        wanted: dict[str, set[str]] = {}
        for writer in range(self.writers):
            for user, text in self._load.writes(writer):
                wanted.setdefault(user, set()).add(text)
        placed = {user for name in self._names for user in self._cells.directory.users_in(name)}
        _check(placed <= wanted.keys(), "there are users without writes")
        moves = sum(self._check_user(user, texts) for user, texts in wanted.items())
        counts = Counter({user: len(texts) for user, texts in wanted.items()})
        compare("the totals", dict(cq.CombineQueue(QUEUE).scan(self._db)), {**counts, ALL: counts.total()})
        found = {each.name: each.users for each in self._cells.cells()}
        return {"writes": counts.total(), "users": sum(found.values()), "moves": moves, "cells": found}

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
    begin, end = ExportKeys(QUEUE).all_rows()
    return is_drained(db, QUEUE) and not transact(
        db, lambda tr: tr.snapshot.get_range(begin, end, limit=1).to_list()
    )


def _check(holds: bool, difference: str) -> None:
    if not holds:
        raise DemoDiffers(f"not as recounted: {difference}")
