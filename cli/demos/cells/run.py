"""The demo of cells: users write and are moved while all processes are killed, and no write is lost.

Writers and movers run at the same time. A process with a worker for each store forwards the counts of the cells to the
store with the directory. At the end a recount of the writes is compared with the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import cq
from cq import runtime
from cq.admin.queue_status import is_drained
from cq.cells.records import HERE, Fence
from cq.cli.demos.cells.roles import ALL, QUEUE, CellWorkers, Mover, WriteLoad, Writer, read_position
from cq.cli.demos.crew.crew import DemoCrew, DemoRole
from cq.cli.demos.crew.errors import DemoFailed
from cq.encoding import codec
from cq.errors import InvalidConfiguration
from cq.keys import after
from cq.keys import cell as cellkeys
from cq.keys.export import ExportKeys
from cq.observers.forward.spec import forward_spec
from cq.store.api import Database, Transaction
from cq.store.transact import transact

URL_ENV: Final = "CQ_DEMO_CELLS_URL"
"""The environment variable with the URL of the store that receives the counts of the cells."""
_SECONDS: Final = 600.0
_PAGE: Final = 1_000


@dataclass(frozen=True)
class CellSettings:
    """The settings of the demo.

    Attributes:
        cells: number of cells.
        writers, movers: numbers of processes.
        pause: seconds between two moves of a mover.
        kill_every: average seconds between two kills of a process.
    """

    cells: int = 3
    writers: int = 2
    movers: int = 2
    pause: float = 0.05
    kill_every: float = 2.0


@dataclass(frozen=True)
class CellOutcome:
    """The figures of a successful run.

    Attributes:
        writes: number of writes, each done once.
        users: number of users with writes.
        moves: number of finished moves of users.
        kills: number of killed processes.
        seconds: from the first start of a process until all counts were forwarded.
        cells: {name: number of its users}.
    """

    writes: int
    users: int
    moves: int
    kills: int
    seconds: float
    cells: dict[str, int]


def run(
    url: str,
    folder: Path,
    load: WriteLoad,
    settings: CellSettings,
    rng: Random,
    notify: Callable[[int, int], object] = lambda done, total: None,
) -> CellOutcome:
    """Run the demo.

    Args:
        url: URL of a store without cells, for the directory and the totals; $CQ_DEMO_CELLS_URL must have it, too.
        folder: folder for the stores of the cells.
        load: the writes of each writer.
        settings: the settings of the demo.
        rng: random source of the kills.
        notify: called repeatedly with the number of finished writes, and the number of all writes.

    Raises `DemoFailed` for a difference from the recount, `InvalidConfiguration` for a store with cells.
    """
    db = cq.open(url)
    with cq.Cells(db) as cells:
        names = _make_cells(cells, db, folder, settings.cells)
        demo = _CellDemo(cells, db, url, names, load, settings)
        demo.run(rng, notify)
        cells.resume_moves()
        moves = _compare(cells, db, load, settings.writers)
        found = {each.name: each.users for each in cells.cells()}
        return CellOutcome(
            load.number * settings.writers, sum(found.values()), moves, demo.kills, demo.seconds, found
        )


class _CellDemo:
    """The processes of the demo.

    Attributes:
        kills: number of killed processes.
        seconds: duration of the run.
    """

    def __init__(
        self,
        cells: cq.Cells,
        db: Database,
        url: str,
        names: list[str],
        load: WriteLoad,
        settings: CellSettings,
    ) -> None:
        self.kills = 0
        self.seconds = 0.0
        self._stores = {"the directory": db, **{name: cells.store(name) for name in names}}
        self._db, self._load, self._settings = db, load, settings
        urls = url, *(each.url for each in cells.cells())
        self._writers: dict[str, DemoRole] = {
            f"writer {number + 1}": Writer(url, load, number) for number in range(settings.writers)
        }
        self._others: dict[str, DemoRole] = {
            "workers": CellWorkers(urls),
            **{f"mover {number + 1}": Mover(url, load, settings.pause) for number in range(settings.movers)},
        }

    def run(self, rng: Random, notify: Callable[[int, int], object]) -> None:
        """Run the processes until all writes are done, combined and forwarded."""
        total = self._load.number * self._settings.writers
        begun = runtime.monotonic()
        with DemoCrew({**self._writers, **self._others}, rng, self._settings.kill_every) as crew:

            def written() -> bool:
                notify(
                    sum(read_position(self._db, number) for number in range(self._settings.writers)), total
                )
                return crew.ended >= self._writers.keys()

            crew.run(written, _SECONDS)
            crew.run(self._is_forwarded, _SECONDS)
        self.kills = crew.kills
        self.seconds = runtime.monotonic() - begun

    def _is_forwarded(self) -> bool:
        """Whether all counts are combined and forwarded; the receiving store is checked last."""
        stores = [db for name, db in self._stores.items() if name != "the directory"]
        return all(map(_is_idle, stores)) and _is_idle(self._db)


def _is_idle(db: Database) -> bool:
    waiting = transact(db, lambda tr: tr.snapshot.get_range(*ExportKeys(QUEUE).all_rows(), limit=1).to_list())
    return is_drained(db, QUEUE) and not waiting


def _make_cells(cells: cq.Cells, db: Database, folder: Path, number: int) -> list[str]:
    """Create the cells and their queues; returns the names of the cells."""
    if cells.cells():
        raise InvalidConfiguration("the store has cells, which the demo must not use: name another store")
    cq.configure(db, QUEUE)
    names = [f"cell-{each + 1}" for each in range(number)]
    for name in names:
        cells.add_cell(name, f"embedded:{folder / name}.db")
        cq.configure(cells.store(name), QUEUE, observers=[forward_spec(url_env=URL_ENV)])
    return names


# The recount


def _compare(cells: cq.Cells, db: Database, load: WriteLoad, writers: int) -> int:
    """Compare everything with the recount, or raise `DemoFailed`; returns the number of moves."""
    expected: dict[str, set[str]] = {}
    for writer in range(writers):
        for user, text in load.writes(writer):
            expected.setdefault(user, set()).add(text)
    names = [each.name for each in cells.cells()]
    placed = {user: name for name in names for user in cells.directory.users_in(name)}
    _check(placed.keys() - expected.keys() == set(), "there are users without writes")
    moves = 0
    for user, wanted in expected.items():
        moves += _check_user(cells, names, user, wanted)
    totals = dict(cq.CombineQueue(QUEUE).scan(db))
    recounted = Counter({user: len(texts) for user, texts in expected.items()})
    _check(totals == {**recounted, ALL: recounted.total()}, "the totals are not those of all users")
    return moves


def _check_user(cells: cq.Cells, names: list[str], user: str, wanted: set[str]) -> int:
    """Check that the writes of a user are in the user's cell only, each once; returns the moves of the user."""
    record = cells.directory.record(user)
    _check(not record.is_moving, f"the move of {user} is not done")
    for name in names:
        db = cells.store(name)
        fence = transact(db, lambda tr: tr.get(cellkeys.fence(cellkeys.encoded_user(user))).value)
        is_here = fence is not None and Fence.from_bytes(fence) == Fence(HERE, record.epoch)
        _check(is_here == (name == record.cell), f"{user} is in {record.cell}, and {name} says otherwise")
        found = dict(_rows_of(db, user))
        if name == record.cell:
            _check(found.keys() == wanted, f"{len(wanted - found.keys())} writes of {user} are lost")
            _check(sorted(found.values()) == list(range(1, len(wanted) + 1)), f"the ids of {user} have gaps")
        else:
            _check(not found, f"{name} has {len(found)} writes of {user}, who is in {record.cell}")
    return record.epoch - 1


def _rows_of(db: Database, user: str) -> Iterator[tuple[str, int]]:
    """The (text, id) of each write of a user in a store."""
    encoded = cellkeys.encoded_user(user)
    prefix = cellkeys.data(encoded)
    begin, end = prefix, cellkeys.latest_id(encoded)

    def page(tr: Transaction) -> list[Any]:
        return tr.snapshot.get_range(begin, end, limit=_PAGE).to_list()

    while rows := transact(db, page):
        for row in rows:
            yield row.key[len(prefix) :].decode(), codec.decode(row.value)[0]
        begin = after(rows[-1].key)


def _check(holds: bool, difference: str) -> None:
    if not holds:
        raise DemoFailed(f"not as recounted: {difference}")
