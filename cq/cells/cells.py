"""Users spread over many stores: each user's data lies in one cell, and a small directory says in which.

    cells = Cells(cq.open("embedded:directory.db"))
    cells.add_cell("eu-1", "fdb:/etc/foundationdb/eu-1.cluster")
    cells.place("ada")
    cells.transact("ada", lambda data: data.tr.set(data.prefix + b"name", b"Ada"))
    cells.move("ada", "eu-2")

Each transaction of a user really reads the user's fence in the cell: what the cache says is checked where it is used,
and a move that begins conflicts with everything still under way, so that no write is lost (see `cq.cells.move`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from cq import runtime, store
from cq.cells.directory import CellStatus, Directory, checked_cell, emptiest
from cq.cells.move import UserMove
from cq.cells.records import DRAINING, HERE, Fence, Record
from cq.cells.stores import CellStores
from cq.cells.user_data import UserData
from cq.errors import CellMismatch, CellNotKnown, UserMoving
from cq.keys import cell as keys
from cq.store.api import Database, Transaction
from cq.store.transact import transact

T = TypeVar("T")

CACHED_USERS: Final = 100_000
FIRST_PAUSE: Final = 0.01
LAST_PAUSE: Final = 0.5


class Location(NamedTuple):
    """Where a user is: the cell's name, and the epoch, which counts the user's cells."""

    cell: str
    epoch: int


class Move(NamedTuple):
    """A move of a user from one cell to another."""

    user: Any
    source: str
    target: str


class _Elsewhere(Exception):
    """The user is not in the cell, or not in the epoch, that the transaction was for."""


class Cells:
    """A directory of cells, and the cells themselves; for any thread. Use it as a context manager, or `close` it.

    Users are str, int or bytes, up to 200 bytes in CBOR.

    Args:
        directory: the database that has the directory.
        opener: opens the store of a cell's URL; `cq.open` by default.
    """

    def __init__(self, directory: Database, *, opener: Callable[[str], Database] = store.open) -> None:
        self.directory = Directory(directory)
        self._stores = CellStores(self.directory, opener)
        self._cache: dict[bytes, Location] = {}  # by users in CBOR: 1 and 1.0 are one key of a dict

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stores of the cells; the directory's database stays open."""
        self._stores.close()

    # Cells

    def add_cell(self, name: str, url: str, *, weight: int = 1) -> None:
        """Add a cell, or give one that there is another URL or weight.

        The store learns which cell it is, of which directory: it can be no other one any more.

        Args:
            name: 1 to 100 letters, digits, `_`, `.` or `-`.
            url: as `cq.open` takes it. The same for all processes: paths are stored in full.
            weight: how much room there is compared with other cells, 1 to 1,000,000.

        Raises:
            InvalidConfiguration, InvalidUrl: the name, the weight or the URL is none.
            CellMismatch: the store is another cell, or another directory's; or not the one that had this name.
            StoreError: the store cannot be opened.
        """
        cell = checked_cell(name, url, weight)
        try:
            self.directory.cell(name)
            is_new = False
        except CellNotKnown:
            is_new = True
        self._stores.claim(name, cell.url, is_new=is_new)
        self.directory.put_cell(name, cell, is_new=is_new)

    def drain_cell(self, name: str, *, draining: bool = True) -> None:
        """Have a cell take no more users, so that `rebalance` empties it; or again. Raises `CellNotKnown`."""
        self.directory.set_draining(name, draining)

    def cells(self) -> list[CellStatus]:
        """All cells with their numbers of users, by name."""
        return self.directory.cells()

    def store(self, name: str) -> Database:
        """The store of a cell: for its queues, workers, and questions that concern no single user.

        Raises `CellNotKnown`, `CellMismatch`, `StoreError`.
        """
        return self._stores[name]

    # Users

    def place(self, user: Any) -> str:
        """Put a user into the cell that is least full by its weight; returns its name.

        A user who is in a cell already stays there. Raises `NoRoom`, `InvalidData`.
        """
        return self._remember(user, self.directory.place(user)).cell

    def locate(self, user: Any) -> Location:
        """Where the user is, as far as this process knows; `transact` finds out when it is no longer so.

        Raises `UserNotPlaced`, `InvalidData`.
        """
        known = self._cache.get(keys.encoded_user(user))
        return known if known is not None else self._remember(user, self.directory.record(user))

    def transact(self, user: Any, function: Callable[[UserData], T], *, timeout: float = 10.0) -> T:
        """Run `function(data)` in a transaction of the user's cell, commit it, and return what it returned.

        It may run several times, as with `cq.transact`: also after a commit of which nobody knows whether it has
        happened, and then perhaps in another cell, where all is as that commit has left it. While the user is being
        moved this waits, for so many seconds in all.

        Raises:
            UserNotPlaced: the user is in no cell.
            UserMoving: the user was being moved all the time; nothing was committed: try again.
            CellMismatch: a store is not what the directory says.
            Exception: whatever the function raises, with nothing committed, and what `cq.transact` raises.
        """
        end = runtime.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            location = self.locate(user)
            db = self._stores[location.cell]
            try:
                return transact(db, lambda tr: function(self._entered(tr, user, location)))  # noqa: B023
            except _Elsewhere:
                record = self._asked_anew(user, location)
            if record is not None:
                if runtime.monotonic() >= end:
                    raise UserMoving(
                        f"user {user!r} is being moved from cell {record.cell!r} to {record.target!r}: try again, "
                        "and see `cq cells list` whether the move goes on"
                    )
                runtime.sleep(pause * (0.5 + runtime.token_bytes(1)[0] / 255))
                pause = min(2 * pause, LAST_PAUSE)

    def _entered(self, tr: Transaction, user: Any, location: Location) -> UserData:
        """The user's data, if the user is here: a real read, so that a move which begins meanwhile is a conflict."""
        key = keys.fence(keys.encoded_user(user))
        here = Fence(HERE, location.epoch)
        stored = tr.get(key).value
        if stored is None and location.epoch == 1:
            # The first to come: a user who has left has left a fence. But was the store emptied meanwhile?
            self._stores.check(tr, location.cell)
            tr.set(key, here.to_bytes())
        elif stored is None or Fence.from_bytes(stored) != here:
            raise _Elsewhere
        return UserData(tr, user, location.cell)

    def _asked_anew(self, user: Any, location: Location) -> Record | None:
        """The user's record if the user is about to leave the location; None if the user is elsewhere by now."""
        self._cache.pop(keys.encoded_user(user), None)
        record = self.directory.record(user)
        if Location(record.cell, record.epoch) != location:
            self._remember(user, record)
            return None
        if record.target is None:
            raise CellMismatch(
                f"cell {location.cell!r} does not have user {user!r} as the directory says (epoch {location.epoch}): "
                "one of the two was set back; restore both as of one moment"
            )
        return record

    def _remember(self, user: Any, record: Record) -> Location:
        location = Location(record.cell, record.epoch)
        if len(self._cache) >= CACHED_USERS:
            self._cache.clear()
        self._cache[keys.encoded_user(user)] = location
        return location

    # Moves

    def move(self, user: Any, cell: str) -> None:
        """Move a user to another cell, after a move that is under way; returns when all is done.

        Anybody can go on with a move whose process has died: another call of this, or `resume_moves`.

        Raises:
            UserNotPlaced, CellNotKnown, NoRoom: there is no such user or cell, or the cell is being drained.
            MoveFailed: the copy is not as the original; the next try copies anew.
            CellMismatch, StoreError: a store is not what the directory says, or cannot be used.
        """
        self._remember(user, UserMove(self.directory, self._stores, user).to(cell))

    def moves(self) -> Iterator[Move]:
        """The moves that are under way, also those that are done but for clearing the old data."""
        for user in self.directory.moving():
            record = self.directory.record(user)
            if record.target is not None:
                yield Move(user, record.cell, record.target)
            elif record.source is not None:
                yield Move(user, record.source, record.cell)

    def resume_moves(self) -> int:
        """Go on with all moves that are under way, whoever has begun them; returns how many. Errors as `move`."""
        count = 0
        for user in self.directory.moving():
            self._remember(user, UserMove(self.directory, self._stores, user).finish())
            count += 1
        return count

    def rebalance(self, most: int = 1_000) -> Iterator[Move]:
        """Go on with moves under way, then empty cells that are drained, then even out the others by their weights.

        Moves at most so many users, one after the other as the iterator is asked for them, and ends when no move would
        help. Errors as `move`.
        """
        self.resume_moves()
        for _ in range(most):
            chosen = self._chosen()
            if chosen is None:
                return
            self.move(chosen.user, chosen.target)
            yield chosen

    def _chosen(self) -> Move | None:
        """The move that helps most; None when none does."""
        cells = self.cells()
        target = emptiest(cells)
        if target is None:
            return None
        drained = [each for each in cells if each.state == DRAINING and each.users > 0]
        crowded = [each for each in cells if each.fullness() > target.fullness(1)]
        source = max(drained or crowded, key=lambda each: (each.fullness(), each.name), default=None)
        if source is None:
            return None
        user = next(self.directory.users_in(source.name), None)
        return None if user is None else Move(user, source.name, target.name)
