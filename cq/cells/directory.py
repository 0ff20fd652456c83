"""The directory: which cells there are, which one each user is in, and which moves are under way.

All that concerns a user conflicts on the user's record; the number of users in each cell is kept by atomic
additions, so that users are placed and moved at the same time without conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from cq.cells.records import DRAINING, OPEN, Cell, Record
from cq.config.store_id import ensure_store_id
from cq.errors import CellError, CellNotKnown, InvalidConfiguration, InvalidUrl, NoRoom, UserNotPlaced
from cq.keys import after, check_name, prefix_end
from cq.keys import cell as keys
from cq.store import absolute
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.transact import transact

T = TypeVar("T")

MAX_WEIGHT: Final = 1_000_000
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell as the directory sees it.

    Attributes:
        name, url, weight, state: see `Cell`.
        users: how many are in it.
    """

    name: str
    url: str
    weight: int
    state: str
    users: int

    def fullness(self, more: int = 0) -> float:
        """How full it is by its weight, with so many users more."""
        return (self.users + more) / self.weight


class Directory:
    """The directory in a store; a handle without state, for any thread.

    Args:
        db: a database of either store, which may be a cell, too.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    def store_id(self) -> bytes:
        """By which the cells know the directory that they belong to."""
        return ensure_store_id(self.db)

    # Cells

    def put_cell(self, name: str, cell: Cell, *, is_new: bool) -> None:
        """Enter a new cell, or change the URL and the weight of one that there is.

        Raises `CellError` when somebody else has added the new one meanwhile, with another URL.
        """

        def put(tr: Transaction) -> None:
            stored = tr.get(keys.cell(name)).value
            if stored is None:
                tr.set(keys.cell(name), cell.to_bytes())
                return
            found = Cell.from_bytes(stored)
            if is_new and found.url != cell.url:
                raise CellError(f"somebody else has just added cell {name!r}: see `cq cells list`")
            tr.set(keys.cell(name), replace(cell, state=found.state).to_bytes())

        transact(self.db, put)

    def set_draining(self, name: str, draining: bool) -> None:
        """Have a cell take no more users, or again; raises `CellNotKnown`."""

        def change(tr: Transaction) -> None:
            state = DRAINING if draining else OPEN
            tr.set(keys.cell(name), replace(read_cell(tr, name), state=state).to_bytes())

        transact(self.db, change)

    def cell(self, name: str) -> Cell:
        """A cell's entry; raises `CellNotKnown`."""
        return transact(self.db, lambda tr: read_cell(tr.snapshot, name))

    def cells(self) -> list[CellStatus]:
        """All cells, by name."""
        return transact(self.db, lambda tr: _read_cells(tr.snapshot, tr.snapshot))

    # Users

    def record(self, user: Any) -> Record:
        """Where a user is; raises `UserNotPlaced`, `InvalidData`."""
        encoded = keys.encoded_user(user)
        stored = transact(self.db, lambda tr: tr.snapshot.get(keys.record(encoded)).value)
        return _parse(user, stored)

    def place(self, user: Any) -> Record:
        """Put a user into the cell that is least full, unless the user is in one already; see `Cells.place`."""
        encoded = keys.encoded_user(user)

        def put(tr: Transaction) -> Record:
            stored = tr.get(keys.record(encoded)).value
            if stored is not None:
                return Record.from_bytes(stored)
            # Entries are read for real, as a cell may be about to be drained; loads are not, as they always change.
            chosen = emptiest(_read_cells(tr, tr.snapshot))
            if chosen is None:
                raise NoRoom("no cell takes users: add one with `cq cells add NAME URL`")
            _enter(tr, encoded, chosen.name, 1)
            record = Record(chosen.name, 1)
            tr.set(keys.record(encoded), record.to_bytes())
            return record

        return transact(self.db, put)

    def users_in(self, name: str) -> Iterator[Any]:
        """The users in a cell, a page in each transaction."""
        return self._users_behind(keys.within(name))

    def moving(self) -> Iterator[Any]:
        """The users of whose moves something is left to be done, a page in each transaction."""
        return self._users_behind(keys.moving())

    def _users_behind(self, prefix: bytes) -> Iterator[Any]:
        begin, end = prefix, prefix_end(prefix)
        while found := transact(self.db, partial(_page, begin=begin, end=end)):
            yield from (keys.user_in(prefix, key) for key in found)
            begin = after(found[-1])

    # Moves, each step of them once: whoever comes later finds another record

    def begin_move(self, user: Any, target: str) -> Record:
        """Note that a user is to be moved, unless a move is under way or done; returns the record.

        Raises `UserNotPlaced`, `CellNotKnown`, and `NoRoom` for a cell that takes no users.
        """

        def begin(tr: Transaction, encoded: bytes) -> Record:
            record = _parse(user, tr.get(keys.record(encoded)).value)
            if record.is_moving or record.cell == target:
                return record
            if read_cell(tr, target).state != OPEN:
                raise NoRoom(f"cell {target!r} is being drained, and takes no users: choose another one")
            moved = replace(record, target=target)
            tr.set(keys.record(encoded), moved.to_bytes())
            tr.set(keys.moving(encoded), b"")
            return moved

        return self._change(user, begin)

    def switch(self, user: Any, before: Record) -> None:
        """Say that a user is in the target of the move, if the record is still this one."""
        target = before.target
        if target is None:
            raise ValueError(f"user {user!r} is not being moved")

        def change(tr: Transaction, encoded: bytes) -> None:
            if _parse(user, tr.get(keys.record(encoded)).value) != before:
                return
            _enter(tr, encoded, before.cell, -1)
            _enter(tr, encoded, target, 1)
            moved = Record(target, before.epoch + 1, source=before.cell)
            tr.set(keys.record(encoded), moved.to_bytes())

        self._change(user, change)

    def end_move(self, user: Any, before: Record) -> None:
        """Forget a move of which nothing is left to be done, if the user's record is still this one."""

        def end(tr: Transaction, encoded: bytes) -> None:
            if _parse(user, tr.get(keys.record(encoded)).value) == before:
                tr.set(keys.record(encoded), Record(before.cell, before.epoch).to_bytes())
                tr.clear(keys.moving(encoded))

        self._change(user, end)

    def _change(self, user: Any, change: Callable[[Transaction, bytes], T]) -> T:
        encoded = keys.encoded_user(user)
        return transact(self.db, lambda tr: change(tr, encoded))


def checked_cell(name: str, url: str, weight: int) -> Cell:
    """The entry of a new cell, with its path in full; raises `InvalidConfiguration`, `InvalidUrl`."""
    check_name(name)
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
        raise InvalidConfiguration(
            f"expected the weight of a cell to be 1 to {MAX_WEIGHT:,}, got: {weight!r}"
        )
    try:
        full = absolute(url)
    except InvalidUrl:
        # Not shown: it may be that of another kind of database, with its password.
        raise InvalidUrl(
            f"the URL of cell {name!r} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
        ) from None
    return Cell(full, weight)


def read_cell(tr: TransactionRead, name: str) -> Cell:
    """A cell's entry; raises `CellNotKnown`."""
    stored = tr.get(keys.cell(name)).value
    if stored is None:
        raise CellNotKnown(f"the directory has no cell {name!r}: `cq cells list` shows those that it has")
    return Cell.from_bytes(stored)


def _read_cells(tr: TransactionRead, snapshot: TransactionRead) -> list[CellStatus]:
    """All cells; their entries read by the first, their loads by the second."""
    entries = [(keys.cell_of(row.key), Cell.from_bytes(row.value)) for row in tr.get_range(*keys.cells())]
    loads = [snapshot.get(keys.load(name)) for name, _ in entries]
    return [
        CellStatus(name, cell.url, cell.weight, cell.state, keys.load_of(load.value))
        for (name, cell), load in zip(entries, loads, strict=True)
    ]


def _page(tr: Transaction, begin: bytes, end: bytes) -> list[bytes]:
    return [row.key for row in tr.snapshot.get_range(begin, end, limit=_PAGE)]


def _parse(user: Any, stored: bytes | None) -> Record:
    if stored is None:
        raise UserNotPlaced(
            f"user {user!r} is in no cell: `cq cells place`, or Cells.place(), puts users into cells"
        )
    return Record.from_bytes(stored)


def _enter(tr: Transaction, user: bytes, cell: str, number: int) -> None:
    """Count a user in a cell (1), or no more (-1)."""
    tr.add(keys.load(cell), keys.packed_load(number))
    if number > 0:
        tr.set(keys.within(cell, user), b"")
    else:
        tr.clear(keys.within(cell, user))


def emptiest(cells: Iterable[CellStatus]) -> CellStatus | None:
    """The cell that is least full once it has one more user, of those that take users; None when there is none."""
    rooms = [each for each in cells if each.state == OPEN]
    return min(rooms, key=lambda each: each.fullness(1), default=None)
