"""The directory: the cells, the cell of each user, and the moves under way.

Changes of one user conflict on the user's record. Atomic additions count the users in each cell, so different users are
placed and moved at the same time without conflicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from cq.cells.records import DRAINING, OPEN, Cell, Record
from cq.errors import CellError, CellNotKnown, InvalidConfiguration, InvalidUrl, NoRoom, UserNotPlaced
from cq.keys import below, check_name
from cq.keys import cell as keys
from cq.store import absolute
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.row_pages import scan_rows
from cq.store.transact import transact

T = TypeVar("T")

MAX_WEIGHT: Final = 1_000_000
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class CellStatus:
    """A cell in the directory.

    Attributes:
        name, url, weight, state: see `Cell`.
        users: number of users in it.
    """

    name: str
    url: str
    weight: int
    state: str
    users: int

    def fullness(self, more: int = 0) -> float:
        """Return its users, plus `more`, in proportion to its weight."""
        return (self.users + more) / self.weight


class Directory:
    """The directory in a store; a handle without state, for any thread.

    Args:
        db: a database of either store; it may also be a cell.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    # Cells

    def put_cell(self, name: str, cell: Cell, *, is_new: bool) -> None:
        """Add a new cell, or change the URL and the weight of an existing one.

        Raises `CellError` if another process has just added the new cell with another URL.
        """

        def put(tr: Transaction) -> None:
            stored = tr.get(keys.cell(name)).value
            if stored is None:
                tr.set(keys.cell(name), cell.to_bytes())
                return
            found = Cell.from_bytes(stored)
            if is_new and found.url != cell.url:
                raise CellError(f"another process has just added cell {name!r}: see `cq cells list`")
            tr.set(keys.cell(name), replace(cell, state=found.state).to_bytes())

        transact(self.db, put)

    def set_draining(self, name: str, draining: bool) -> None:
        """Close a cell for new users, or open it again; raises `CellNotKnown`."""

        def change(tr: Transaction) -> None:
            state = DRAINING if draining else OPEN
            tr.set(keys.cell(name), replace(read_cell(tr, name), state=state).to_bytes())

        transact(self.db, change)

    def cell(self, name: str) -> Cell:
        """Return a cell's entry; raises `CellNotKnown`."""
        return transact(self.db, lambda tr: read_cell(tr.snapshot, name))

    def cells(self) -> list[CellStatus]:
        """Return all cells, by name."""
        return transact(self.db, lambda tr: _read_cells(tr.snapshot, tr.snapshot))

    # Users

    def record(self, user: Any) -> Record:
        """Return a user's record; raises `UserNotPlaced`, `InvalidData`."""
        return transact(self.db, lambda tr: _read_record(tr.snapshot, user))

    def place(self, user: Any) -> Record:
        """Place a user in the cell that is least full, unless the user has a cell; see `Cells.place`."""
        encoded = keys.encoded_user(user)

        def put(tr: Transaction) -> Record:
            stored = tr.get(keys.record(encoded)).value
            if stored is not None:
                return Record.from_bytes(stored)
            # Entries with a conflict, as a concurrent drain must count; loads by snapshot, as they change all the time.
            chosen = emptiest(_read_cells(tr, tr.snapshot))
            if chosen is None:
                raise NoRoom("no cell takes users: add one with `cq cells add NAME URL`")
            _count_user(tr, encoded, chosen.name, 1)
            record = Record(chosen.name, 1)
            tr.set(keys.record(encoded), record.to_bytes())
            return record

        return transact(self.db, put)

    def users_in(self, name: str) -> Iterator[Any]:
        """Yield the users in a cell, a page in each transaction."""
        return self._users_below(keys.within(name))

    def moving(self) -> Iterator[Any]:
        """Yield the users with unfinished moves, a page in each transaction."""
        return self._users_below(keys.moving())

    def _users_below(self, prefix: bytes) -> Iterator[Any]:
        rows = scan_rows(self.db, *below(prefix), limit=_PAGE)
        return (keys.user_in(prefix, key) for key, _ in rows)

    # Moves: each step compares the record, so a late process does no step twice

    def begin_move(self, user: Any, target: str) -> Record:
        """Record the move of a user, unless a move is under way or complete; returns the record.

        Raises `UserNotPlaced`, `CellNotKnown`, and `NoRoom` for a cell that is being drained.
        """
        encoded = keys.encoded_user(user)

        def begin(tr: Transaction) -> Record:
            record = _read_record(tr, user)
            if record.is_moving or record.cell == target:
                return record
            if read_cell(tr, target).state != OPEN:
                raise NoRoom(f"cell {target!r} is being drained, and takes no users: choose another one")
            moved = replace(record, target=target)
            tr.set(keys.record(encoded), moved.to_bytes())
            tr.set(keys.moving(encoded), b"")
            return moved

        return transact(self.db, begin)

    def advance(self, user: Any, before: Record, after: Record) -> None:
        """Record that a move has reached its next step, `after`, if the user's record is still `before`."""
        encoded = keys.encoded_user(user)

        def advance(tr: Transaction) -> None:
            if _read_record(tr, user) != before:
                return
            if after.cell != before.cell:
                _count_user(tr, encoded, before.cell, -1)
                _count_user(tr, encoded, after.cell, 1)
            tr.set(keys.record(encoded), after.to_bytes())
            if not after.is_moving:
                tr.clear(keys.moving(encoded))

        transact(self.db, advance)


def checked_cell(name: str, url: str, weight: int) -> Cell:
    """Return the entry of a new cell, with its path in full; raises `InvalidConfiguration`, `InvalidUrl`."""
    check_name(name)
    if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
        raise InvalidConfiguration(
            f"expected the weight of a cell to be 1 to {MAX_WEIGHT:,}, got: {weight!r}"
        )
    try:
        full = absolute(url)
    except InvalidUrl:
        # The message omits the URL: it may be one of another kind of database, with a password.
        raise InvalidUrl(
            f"the URL of cell {name!r} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
        ) from None
    return Cell(full, weight)


def read_cell(tr: TransactionRead, name: str) -> Cell:
    """Return a cell's entry; raises `CellNotKnown`."""
    stored = tr.get(keys.cell(name)).value
    if stored is None:
        raise CellNotKnown(f"the directory has no cell {name!r}: `cq cells list` shows its cells")
    return Cell.from_bytes(stored)


def _read_cells(tr: TransactionRead, snapshot: TransactionRead) -> list[CellStatus]:
    """Read all cells: their entries through `tr`, their loads through `snapshot`."""
    entries = [(keys.cell_of(row.key), Cell.from_bytes(row.value)) for row in tr.get_range(*keys.cells())]
    loads = [snapshot.get(keys.load(name)) for name, _ in entries]
    return [
        CellStatus(name, cell.url, cell.weight, cell.state, keys.load_of(load.value))
        for (name, cell), load in zip(entries, loads, strict=True)
    ]


def _read_record(tr: TransactionRead, user: Any) -> Record:
    stored = tr.get(keys.record(keys.encoded_user(user))).value
    if stored is None:
        raise UserNotPlaced(
            f"user {user!r} is in no cell: `cq cells place`, or Cells.place(), puts users into cells"
        )
    return Record.from_bytes(stored)


def _count_user(tr: Transaction, user: bytes, cell: str, number: int) -> None:
    """Add a user to a cell (1), or remove it (-1)."""
    tr.add(keys.load(cell), keys.packed_load(number))
    if number > 0:
        tr.set(keys.within(cell, user), b"")
    else:
        tr.clear(keys.within(cell, user))


def emptiest(cells: Iterable[CellStatus]) -> CellStatus | None:
    """Return the open cell that is least full with one more user; None if no cell is open."""
    open_cells = [each for each in cells if each.state == OPEN]
    return min(open_cells, key=lambda each: each.fullness(1), default=None)
