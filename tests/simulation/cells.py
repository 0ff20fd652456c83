"""The system of the cells: users who write, movers, routers, and workers that forward what each cell has counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

import cq
import cq.links
from cq.cells import Cells, Router, UserData, gather_users, move
from cq.cells.records import HERE, Cell, Fence, Record
from cq.encoding import codec
from cq.keys import ROOT, QueueKeys, below
from cq.keys import cell as cellkeys
from cq.keys.link import LinkKeys
from cq.queue.set_aside import retry_aside
from tests.simulation.actors import WorkerPool
from tests.simulation.hub import Process
from tests.simulation.model import Violation
from tests.simulation.plan import Plan
from tests.simulation.scenario import Scenario
from tests.simulation.store import CommitRequest

DIRECTORY: Final = "directory"
CELLS: Final = ("north", "south", "west")
OLD_CELL: Final = CELLS[0]
"""The cell that some users were in before it was one."""
QUEUE: Final = "writes"
INDEX: Final = "whats"
_FRIENDS: Final = 0.1
_KEPT_SECONDS: Final = 0.5
URL_ENV: Final = "CQ_SIMULATED_CENTRAL"
LINK: Final = LinkKeys(QUEUE, "forward")


def _old_row(user: Any = None, what: str = "") -> bytes:
    """The key of a row that a user had before the store became a cell; without a user, the prefix of all."""
    return ROOT + b"zz-old/" + (b"" if user is None else cellkeys.encoded_user(user) + b"/" + what.encode())


@dataclass(frozen=True)
class Deleted:
    """The deletion of a user is decided, after so many ids."""

    user: Any
    latest: int


@dataclass(frozen=True)
class Wrote:
    """A user has written something, under the next id."""

    user: Any
    what: str
    number: int


class CellsWorld(Scenario):
    """One run.

    Attributes:
        users: all that there may be.
        written: {user: {what: id}} of all that is committed, in commit order.
        places: {user: the cells of the user, each since when} by the directory's commits.
    """

    stores: ClassVar[tuple[str, ...]] = (DIRECTORY, *CELLS)

    def __init__(self, plan: Plan, folder: Path, trace: Callable[[str], None]) -> None:
        super().__init__(plan, folder, trace)
        self.users: list[Any] = ["ada", "ad", 7, b"7"][: self.rng.randint(1, 4)]
        self.written: dict[Any, dict[str, int]] = {user: {} for user in self.users}
        self.places: dict[Any, list[tuple[float, str]]] = {user: [(0.0, "")] for user in self.users}
        self.pause = self.rng.choice((0.01, 0.1, 0.5))
        self.slow = self.rng.choice((0.0, 0.3))
        self._operations = 0
        self.old_users = self.users[1::2]
        self._owners: dict[bytes, bytes] = {}
        self._deleted: dict[Any, int] = {}  # with the number of their writes
        self._adopting: set[bytes] = set()
        self._seats: dict[str, int] = {}
        self._finishing = False
        self.pools = {
            name: WorkerPool(self, partial(self.worker, store=name, concurrency=2, beat=4.0))
            for name in self.stores
        }

    @contextmanager
    def _small(self) -> Iterator[None]:
        """Pieces of few rows, and a receiving store as each process sees it."""
        with (
            patch.object(move, "PIECE_ROWS", self.rng.choice((1, 2, 100))),
            patch("cq.cells.router.CACHED_USERS", self.rng.choice((1, 100))),
            patch("cq.cells.router.KEPT_SECONDS", _KEPT_SECONDS),
            patch("cq.store.open_exactly", self._open_here),
        ):
            yield

    def around(self) -> AbstractContextManager[object]:
        return self._small()

    def begin(self) -> None:
        """Make the cells and the queues, and start everybody."""
        os.environ[URL_ENV] = f"embedded:{self.folder / DIRECTORY}.db"
        cells = Cells(self.inner, opener=lambda url, *, create: self.inners[Path(url).name])
        for name in CELLS:
            cells.add_cell(name, f"embedded:{self.folder / name}")
            links = [cq.links.queue(url_env=URL_ENV)] if "forward" in self.plan else []
            cq.configure(self.inners[name], QUEUE, buckets=2, links=links)
        cq.configure(self.inner, QUEUE, buckets=2)
        if "adopt" in self.plan:
            for user in self.old_users:
                for number in range(self.rng.randint(1, 4)):
                    self.inners[OLD_CELL].set(_old_row(user, f"old{number}"), b"")
        for _ in range(self.rng.randint(1, 3)):
            self.start_process("user", "write", partial(self._repeat, self._write))
        for _ in range(self.rng.randint(1, 2)):
            self.start_process("mover", "change", partial(self._repeat, self._change))
        self.start_process("router", "read", self._look_up)
        if "forward" in self.plan:
            self._start_workers()

    def cells(self, process: Process) -> Cells:
        """The cells as a process sees them."""
        return Cells(self.db(process), opener=lambda url, *, create: self.db(process, Path(url).name))

    def _repeat(self, act: Callable[[Cells], object], process: Process) -> None:
        """Do something again and again that may fail while a user is moved."""
        cells = self.cells(process)
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            self.attempt(partial(act, cells), cq.errors.UserMoving, cq.errors.NoRoom, cq.errors.UserDeleted)

    def _look_up(self, process: Process) -> None:
        """Look for users again and again, as a router does."""
        cells = self.cells(process)
        router = Router(cells, self.rng.choice(CELLS), [])
        while not self.is_calm:
            self.hub.wait(self.hub.rng.expovariate(1 / self.pause))
            lead = partial(self._lead, router, self.hub.rng.choice(self.users))
            self.attempt(lead, cq.errors.UserNotPlaced, cq.errors.UserDeleted)
            if self.hub.rng.random() < _FRIENDS:
                self.attempt(partial(self._read_friends, cells))

    def _lead(self, router: Router, user: Any) -> None:
        """A router leads to a cell that the user had during the call, or in its own cell shortly before."""
        since = self.hub.clock
        cell = router.cell_of(user)
        since -= _KEPT_SECONDS if cell == router.here else 0.0
        before = [name for at, name in self.places[user] if at <= since]
        if cell not in before[-1:] + [name for at, name in self.places[user] if at > since]:
            raise Violation(f"a router leads user {user!r} to {cell}, of {self.places[user]}, after {since}")

    def _read_friends(self, cells: Cells) -> None:
        """Read of all users at once: nothing that was committed before is missed."""
        before = {user: len(self.written[user]) for user in self.users if user not in self._deleted}
        found = gather_users(cells, self.users, lambda data: data.last_id(), timeout=2.0)
        for user, number in found.answers.items():
            if user not in before:
                raise Violation(f"user {user!r} is read, after the deletion")
            # A deletion may have been committed after the read.
            if not before[user] <= number <= self._deleted.get(user, len(self.written[user])):
                raise Violation(f"{number} writes of user {user!r} are read, of {before[user]} before")

    # Users

    def _write(self, cells: Cells) -> None:
        """Write for a user, who is placed if need be, until that is known to be committed or given up."""
        user = self.hub.rng.choice(self.users)
        self._operations += 1
        what = f"w{self._operations}"
        for _ in range(self.hub.rng.randint(1, 4)):
            try:
                cells.transact(user, lambda data: self._write_once(data, what), timeout=1.0)
            except cq.errors.UserNotPlaced:
                self._enter(cells, user)
            except cq.errors.UserMoving:
                continue
            else:
                return

    def _enter(self, cells: Cells, user: Any) -> None:
        """Place a user, or adopt one whose rows of old are in a cell."""
        if "adopt" in self.plan and user in self.old_users:
            cells.adopt(user, OLD_CELL, self._convert)
        else:
            cells.place(user)

    def _convert(self, data: UserData) -> bool:
        """Give a row or two of old the user's next ids."""
        tr: Any = data.tr
        begin, end = below(_old_row(data.user))
        rows = tr.get_range(begin, end).to_list()
        piece = rows[: self.hub.rng.randint(1, 2)]
        for row in piece:
            self._write_once(data, row.key[len(begin) :].decode())
            tr.clear(row.key)
        return len(piece) < len(rows)

    def _write_once(self, data: UserData, what: str) -> None:
        tr: Any = data.tr
        key = data.prefix + what.encode()
        if tr.get(key).value is not None:
            return
        if self.hub.rng.random() < self.slow:
            self.hub.wait(self.hub.rng.expovariate(1 / 0.2))  # the application does something else meanwhile
        number = data.next_id()
        data.map_id(what, number)
        data.put_entry(INDEX, what, number)
        tr.set(key, codec.encode(number))
        if "forward" in self.plan:
            cq.CombineQueue(QUEUE).add(tr, {"all": 1, str(data.user): 1})
        tr.notes.append(Wrote(data.user, what, number))

    # Movers

    def _change(self, cells: Cells) -> None:
        rng = self.hub.rng
        what = rng.choice([each for each in self._doing if each in self.plan] or ["move"])
        self.trace(what)
        try:
            self._doing[what](self, cells)
        except cq.errors.UserNotPlaced:
            self.trace("nobody is there yet")

    def _move(self, cells: Cells) -> None:
        cells.move(self.hub.rng.choice(self.users), self.hub.rng.choice(CELLS))

    def _rebalance(self, cells: Cells) -> None:
        for each in cells.rebalance(self.hub.rng.randint(1, 3)):
            self.trace("moved", each)

    def _drain(self, cells: Cells) -> None:
        cells.drain_cell(self.hub.rng.choice(CELLS), draining=self.hub.rng.random() < 0.5)

    def _limit(self, cells: Cells) -> None:
        rng = self.hub.rng
        cells.limit_cell(rng.choice(CELLS), rng.choice((None, 0, 1, 2, 3)))
        cells.fill(rng.choice(("emptiest", "newest")))

    def _delete(self, cells: Cells) -> None:
        if self.hub.rng.random() < 0.2:  # not all of them at the beginning
            cells.delete(self.hub.rng.choice(self.users), self._take_away)
        elif self.hub.rng.random() < 0.5:
            self.trace(cells.resume_deletions(), "deletions finished")

    def _take_away(self, data: UserData) -> None:
        """Take what a user has written from the totals, with the deletion."""
        tr: Any = data.tr
        latest = data.next_id() - 1
        if latest and "forward" in self.plan:
            cq.CombineQueue(QUEUE).add(tr, {"all": -latest, str(data.user): -latest})
        tr.notes.append(Deleted(data.user, latest))

    def _name(self, cells: Cells) -> None:
        rng = self.hub.rng
        user, names = rng.choice(self.users), [rng.choice("xyz"), rng.choice("xyz")]
        act: Any = rng.choice((cells.names.claim, cells.names.rename, cells.names.release))
        with suppress(cq.errors.NameTaken, cq.errors.InvalidData):
            act(user, *names)

    _doing: ClassVar[dict[str, Callable[[CellsWorld, Cells], None]]] = {
        "move": _move,
        "rebalance": _rebalance,
        "drain": _drain,
        "limits": _limit,
        "deletes": _delete,
        "names": _name,
        "resume": lambda self, cells: self.trace(cells.resume_moves(), "moves finished"),
    }

    # Workers

    def _start_workers(self) -> None:
        for pool in self.pools.values():
            if not pool.running:
                pool.start()

    def _open_here(self, url: str) -> Any:
        """The store of a URL as the process that has its turn sees it."""
        task = self.hub.current
        assert task is not None
        return self.db(task.process, Path(url).stem)

    # What is committed

    def log(self, store: str, tr: CommitRequest, version: int) -> None:
        """Each write once, under the next id; and each user in one cell at most, at any time."""
        for note in tr.notes:
            ids = self.written[note.user]
            if note.user in self._deleted:
                raise Violation(f"{note}, after the user was deleted")
            if isinstance(note, Deleted):
                if note.latest != len(ids):
                    raise Violation(f"{note}, of {len(ids)} ids")
                self._deleted[note.user] = note.latest
                ids.clear()
                continue
            if note.what in ids:
                raise Violation(f"{note} is committed twice")
            if note.number != len(ids) + 1:
                raise Violation(f"{note}, the id after {len(ids)}")
            ids[note.what] = note.number
        if store == DIRECTORY:
            self._note_places()
            self._check_limits()
            self._check_names()
        for user in self.users:
            here = [name for name in CELLS if self._state(name, user) == HERE]
            if len(here) > 1:
                raise Violation(f"user {user!r} is in the cells {', '.join(here)}")

    def _note_places(self) -> None:
        for user, places in self.places.items():
            stored = self.inner.get(cellkeys.record(cellkeys.encoded_user(user)))
            if stored is not None and (cell := Record.from_bytes(stored).cell) != places[-1][1]:
                places.append((self.hub.clock, cell))

    def _check_names(self) -> None:
        """A name goes from one user to another only when it is free, and both entries of a name agree."""
        rows = self.inner.get_range(*below(cellkeys.CELLS + b"a"))
        owners = {row.key[len(cellkeys.CELLS) + 1 :]: row.value for row in rows}
        for name, owner in owners.items():
            if (before := self._owners.get(name)) not in (None, owner):
                raise Violation(f"the name {name!r} was taken from {before!r} by {owner!r}")
            if not Record.from_bytes(self.inner.get(cellkeys.record(owner))).cell:
                raise Violation(f"{owner!r} is deleted, and has the name {name!r}")
        had = {row.key for row in self.inner.get_range(*below(cellkeys.CELLS + b"b"))}
        if had != {cellkeys.name_of(owner, name.decode()) for name, owner in owners.items()}:
            raise Violation(f"the names are of {owners}, but users have {had}")
        self._owners = owners

    def _check_limits(self) -> None:
        """No cell gets a user above its limit, on their way to it included, apart from those whom it adopts."""
        rows = self.inner.get_range(*below(cellkeys.record(b"")))
        records = {row.key: Record.from_bytes(row.value) for row in rows}
        placed = {key: each for key, each in records.items() if each.epoch}
        seats = Counter(name for each in placed.values() for name in (each.cell, each.target) if name)
        adopted = Counter(placed[key].cell for key in self._adopting & placed.keys())
        self._adopting = records.keys() - placed.keys()
        for row in self.inner.get_range(*cellkeys.cells()):
            name, limit = cellkeys.cell_of(row.key), Cell.from_bytes(row.value).max_users
            if limit is not None and seats[name] > max(limit, self._seats.get(name, 0) + adopted[name]):
                raise Violation(f"{name} has {seats[name]} users, and a limit of {limit}")
        self._seats = dict(seats)

    def _state(self, name: str, user: Any) -> str | None:
        stored = self.inners[name].get(cellkeys.fence(cellkeys.encoded_user(user)))
        return None if stored is None else Fence.from_bytes(stored).state

    # The end

    def settle(self) -> None:
        """Finish the moves, and have all combined and forwarded."""
        process = self.process("finisher")
        cells = self.cells(process)

        def finish() -> None:
            for user in self.old_users if "adopt" in self.plan else ():
                with suppress(cq.errors.UserDeleted):
                    cells.adopt(user, OLD_CELL, self._convert)
            while cells.resume_deletions() or list(cells.moves()):
                cells.resume_moves()
            self._finishing = False

        self._finishing = True
        self.hub.start(process, "finish", finish)
        if "forward" in self.plan:
            self._start_workers()
            self.hub.start(process, "retry", lambda: self._retry(process))

    def _retry(self, process: Process) -> None:
        """Add what faults have made workers set aside again, as long as there is any."""
        while True:
            for name in self.stores:
                retry_aside(self.db(process, name), QUEUE)
            self.hub.wait(1.0)

    def left(self) -> str:
        if self._finishing:
            return "moves"
        if "forward" not in self.plan:
            return ""
        ranges = [QueueKeys(QUEUE).notifications(), QueueKeys(QUEUE).aside(), LINK.all_rows()]
        return ", ".join(
            f"updates of {name}"
            for name, inner in self.inners.items()
            if any(inner.get_range(*bounds, limit=1) for bounds in ranges)
        )

    def check(self) -> None:
        """Who is where, what they have, and what the totals are."""
        if left := self.inners[OLD_CELL].get_range(*below(_old_row()), limit=1):
            raise Violation(f"{list(left)} is not adopted")
        for user in self.users:
            self._check_user(user, self.written[user])
        directory = Cells(self.inner).directory
        for cell in directory.cells():
            users = list(directory.users_in(cell.name))
            if len(users) != cell.users:
                raise Violation(f"{cell.name} has the users {users}, and counts {cell.users}")
        if "forward" in self.plan:
            expected = Counter({str(user): len(ids) for user, ids in self.written.items()})
            expected["all"] = expected.total()
            found = dict(cq.CombineQueue(QUEUE).scan(self.inner))
            if found != {key: count for key, count in expected.items() if count}:
                raise Violation(f"the totals are {found}, of {dict(expected)}")

    def _check_user(self, user: Any, ids: dict[str, int]) -> None:
        encoded = cellkeys.encoded_user(user)
        stored = self.inner.get(cellkeys.record(encoded))
        if stored is None:
            if ids:
                raise Violation(f"user {user!r} has written, and is in no cell")
            return
        record = Record.from_bytes(stored)
        if (user in self._deleted) != (not record.cell):
            raise Violation(f"user {user!r} is deleted, or is not, and has the record {record}")
        if record.is_moving:
            raise Violation(f"the move of user {user!r} is not done: {record}")
        for name in CELLS:
            self._check_tombstone(name, user)
            found = self._found(name, user)
            wanted = ids if name == record.cell else {}
            if found != wanted:
                raise Violation(
                    f"cell {name} has {found} of user {user!r}, who is in {record.cell}, of {wanted}"
                )

    def _check_tombstone(self, name: str, user: Any) -> None:
        """A deleted user has no data in any cell, and no steps of the deletion are left."""
        encoded = cellkeys.encoded_user(user)
        inner = self.inners[name]
        if user in self._deleted and inner.get_range(*cellkeys.all_of(encoded), limit=1):
            raise Violation(f"cell {name} has data of user {user!r}, who was deleted")
        if inner.get(cellkeys.deleting(encoded)) is not None:
            raise Violation(f"the deletion of user {user!r} is not done in {name}")

    def _found(self, name: str, user: Any) -> dict[str, int]:
        """What a cell has of a user; raises `Violation` if its index does not have the same."""
        encoded = cellkeys.encoded_user(user)
        rows = self.inners[name].get_range(*cellkeys.all_of(encoded))
        prefix = cellkeys.data(encoded)
        listed = self.inners[name].get_range(*cellkeys.listed_entries(INDEX))
        listed_here = [row.key for row in listed if cellkeys.parts_of_entry(row.key)[1] == encoded]
        entries = [cellkeys.entry_in(encoded, row.key) for row in rows]
        if listed_here != [cellkeys.listed_entry(entry, encoded) for entry in entries if entry is not None]:
            raise Violation(f"the index of cell {name} has the entries {listed_here} of user {user!r}")
        return {
            row.key[len(prefix) :].decode(): codec.decode(row.value)
            for row in rows
            if row.key.startswith(prefix)
        }
