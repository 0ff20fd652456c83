"""The directory: the cells, the cell of each user, and the moves under way.

Changes of one user conflict on the user's record. Different users are placed and moved at the same time.

The number of users of a cell changes by atomic additions, which do not conflict. Only if the cell has a limit, a
placement reads the number with a conflict, and begins again if another user comes or leaves meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from cq.cells.records import DRAINING, Cell, Record
from cq.errors import (
    CellError,
    CellNotKnown,
    CorruptData,
    CqError,
    InvalidConfiguration,
    InvalidUrl,
    NoRoom,
    UserDeleted,
    UserNotPlaced,
)
from cq.keys import below, check_name
from cq.keys import cell as keys
from cq.store import absolute
from cq.store.api import Database, Transaction, TransactionRead, Value
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

T = TypeVar("T")
MAX_WEIGHT: Final = 1_000_000
EMPTIEST: Final = "emptiest"
NEWEST: Final = "newest"
_PAGE: Final = 500
# Without a user or a query, and so without passwords.
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~/-]*)?")


def take_seat(tr: Transaction, name: str, max_users: int | None) -> None:
    """Count one more user in a cell; raises `NoRoom` if it is full.

    The transaction must have read the cell's entry with a conflict: the limit may change.
    """
    if max_users is not None and keys.count_of(tr.get(keys.count(name)).value) >= max_users:
        raise NoRoom(f"cell {name!r} has {max_users:,} users, its limit: choose another one")
    add_users(tr, name, 1)


def add_users(tr: Transaction, name: str, number: int) -> None:
    """Count `number` more users in a cell, or fewer users if it is negative. The cell's limit is not checked."""
    tr.add(keys.count(name), keys.packed_count(number))


@dataclass(frozen=True, kw_only=True)
class CellStatus(Cell):
    """A cell in the directory, with the attributes of its entry, see `Cell`.

    Attributes:
        name: its name.
        users: number of users in it, and on their way to it.
    """

    name: str
    users: int

    @property
    def closed(self) -> str:
        """Why it takes no users; empty if it takes users."""
        if self.state == DRAINING:
            return "it is being drained"
        if self.max_users is not None and self.users >= self.max_users:
            return f"it is full: {self.users:,} of {self.max_users:,} users"
        if self.load is not None and self.load >= self.weight:
            return f"it is full: load {self.load:,g} of {self.weight:,}"
        return ""

    def fullness(self, more: int = 0) -> float:
        """Return its users, plus `more`, in proportion to its weight."""
        return (self.users + more) / self.weight

    def fullness_by_load(self) -> float:
        """Return its reported load in proportion to its weight, or its fullness if no load is reported."""
        return self.fullness(1) if self.load is None else self.load / self.weight


class Directory:
    """The directory in a store; a handle without state, for any thread.

    Args:
        db: a database of either store; it may also be a cell.
    """

    def __init__(self, db: Database) -> None:
        self.db = db

    # Cells

    def put_cell(self, name: str, settings: Mapping[str, Any], *, is_new: bool) -> None:
        """Add a new cell, or change these settings of an existing one: its URL, weight and web address.

        Raises `CellError` if another process has just added the new cell with another URL.
        """

        def put(tr: Transaction) -> None:
            stored = tr.get(keys.cell(name)).value
            found = None if stored is None else _readable(stored)
            if found is None:
                entries = [_readable(row.value) for row in tr.get_range(*keys.cells())]
                number = 1 + max((each.number for each in entries if each), default=0)
                tr.set(keys.cell(name), Cell(**settings, number=number).to_bytes())
                return
            if is_new and found.url != settings["url"]:
                raise CellError(f"another process has just added cell {name!r}: see `cq cells list`")
            tr.set(keys.cell(name), replace(found, **settings).to_bytes())

        transact(self.db, put)

    def change_cell(self, name: str, **changes: Any) -> None:
        """Change the state, the limit or the load of a cell; raises `CellNotKnown`."""
        transact(
            self.db,
            lambda tr: tr.set(keys.cell(name), replace(read_cell(tr, name), **changes).to_bytes()),
        )

    def set_fill(self, cell: str) -> None:
        """Store which cell new users fill: `EMPTIEST` or `NEWEST`."""
        transact(self.db, lambda tr: tr.set(keys.FILL, cell.encode()))

    def cell(self, name: str) -> Cell:
        """Return a cell's entry; raises `CellNotKnown`."""
        return transact(self.db, lambda tr: read_cell(tr.snapshot, name))

    def cells(self) -> list[CellStatus]:
        """Return all cells, by name."""
        return transact(self.db, lambda tr: _read_cells(tr.snapshot, tr.snapshot))

    # Users

    def record(self, user: Any) -> Record:
        """Return a user's record; raises `UserNotPlaced`, `UserDeleted`, `InvalidData`."""
        return transact(self.db, lambda tr: read_record(tr.snapshot, user))

    def records(self, users: Iterable[Any]) -> dict[Any, Record | CqError]:
        """Return the records of users, read at once; the error that `record` would raise for users without one.

        Raises `InvalidData`.
        """
        encoded = {user: keys.record(keys.encoded_user(user)) for user in users}
        if not encoded:
            return {}

        def read(tr: Transaction) -> dict[Any, Record | CqError]:
            stored = {user: tr.snapshot.get(key) for user, key in encoded.items()}
            return {user: _record_or_error(user, each.value) for user, each in stored.items()}

        return transact(self.db, read)

    def place(self, user: Any, also: Callable[[Transaction], None] = lambda tr: None) -> Record:
        """Place a user, unless the user has a cell, and call `also(tr)` in that transaction; see `Cells.place`."""
        encoded = keys.encoded_user(user)

        def put(tr: Transaction) -> Record:
            stored = tr.get(keys.record(encoded)).value
            if stored is not None:
                record = _stored_record(user, stored)
                also(tr)
                return record
            fill = tr.snapshot.get(keys.FILL)
            # Entries with a conflict, as a concurrent drain must count; the users by snapshot, as they change often.
            chosen = to_fill(_read_cells(tr, tr.snapshot), _fill_of(fill.value))
            if chosen is None:
                raise NoRoom("no cell takes users, see `cq cells list`: add one with `cq cells add NAME URL`")
            take_seat(tr, chosen.name, chosen.max_users)
            tr.set(keys.within(chosen.name, encoded), b"")
            record = Record(chosen.name, 1)
            tr.set(keys.record(encoded), record.to_bytes())
            also(tr)
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

        The user is counted in the target from now on: at the switch it might be full. Raises `UserNotPlaced`,
        `CellNotKnown`, and `NoRoom` for a cell that is full or being drained.
        """
        encoded = keys.encoded_user(user)

        def begin(tr: Transaction) -> Record:
            record = read_record(tr, user)
            if record.is_moving or record.cell == target:
                return record
            users = tr.snapshot.get(keys.count(target))
            status = _status(target, read_cell(tr, target), users)
            if status.closed:
                raise NoRoom(f"cell {target!r} takes no users, {status.closed}: choose another one")
            take_seat(tr, target, status.max_users)
            moved = replace(record, target=target)
            tr.set(keys.record(encoded), moved.to_bytes())
            tr.set(keys.moving(encoded), b"")
            return moved

        return transact(self.db, begin)

    def advance(self, user: Any, before: Record, after: Record) -> None:
        """Record that a move has reached its next step, `after`, if the user's record is still `before`."""
        encoded = keys.encoded_user(user)

        def advance(tr: Transaction) -> None:
            if read_record(tr, user) != before:
                return
            if after.cell != before.cell:
                add_users(tr, before.cell, -1)
                tr.clear(keys.within(before.cell, encoded))
                tr.set(keys.within(after.cell, encoded), b"")
            tr.set(keys.record(encoded), after.to_bytes())
            if not after.is_moving:
                tr.clear(keys.moving(encoded))

        transact(self.db, advance)

    # Adoptions

    def begin_adoption(self, user: Any, cell: str, also: Callable[[Transaction], None]) -> Record:
        """Record that a cell adopts a user, and call `also(tr)`, unless the user has a cell; returns the record.

        Raises `UserDeleted`, `CellNotKnown`, and `CellError` if another cell adopts the user.
        """
        encoded = keys.encoded_user(user)

        def begin(tr: Transaction) -> Record:
            stored = tr.get(keys.record(encoded)).value
            record = Record(cell, 0) if stored is None else Record.from_bytes(stored)
            if record.epoch > 0:
                return _checked_record(user, record)
            if record.cell != cell:
                raise CellError(
                    f"user {user!r} is being adopted by cell {record.cell!r}: adopt the user there"
                )
            read_cell(tr.snapshot, cell)
            tr.set(keys.record(encoded), record.to_bytes())
            also(tr)
            return record

        return transact(self.db, begin)

    def end_adoption(self, user: Any) -> Record:
        """Record that a cell has adopted a user, unless that is done; returns the record. Raises `UserDeleted`."""
        encoded = keys.encoded_user(user)

        def end(tr: Transaction) -> Record:
            record = Record.from_bytes(tr.get(keys.record(encoded)).value)
            if record.epoch > 0:
                return _checked_record(user, record)
            adopted = replace(record, epoch=1)
            add_users(tr, record.cell, 1)
            tr.set(keys.within(record.cell, encoded), b"")
            tr.set(keys.record(encoded), adopted.to_bytes())
            return adopted

        return transact(self.db, end)

    # Deletions

    def bury(self, user: Any, cell: str, also: Callable[[Transaction], None]) -> None:
        """Replace the record of a user in a cell with a tombstone, and call `also(tr)` too, unless that is done."""
        encoded = keys.encoded_user(user)

        def bury(tr: Transaction) -> None:
            try:
                record = read_record(tr, user)
            except UserDeleted:
                return
            if record.target is not None:  # the move that could not begin any more
                add_users(tr, record.target, -1)
            add_users(tr, cell, -1)
            tr.clear(keys.within(cell, encoded))
            tr.clear(keys.moving(encoded))
            tr.set(keys.record(encoded), Record("", record.epoch + 1).to_bytes())
            also(tr)

        transact(self.db, bury)


def checked_settings(name: str, url: str, weight: int | None, web: str | None) -> dict[str, Any]:
    """Return the given settings of a cell, with its path in full; raises `InvalidConfiguration`, `InvalidUrl`."""
    check_name(name, "cell")
    if weight is not None and (type(weight) is not int or not 1 <= weight <= MAX_WEIGHT):
        raise InvalidConfiguration(
            f"expected the weight of a cell to be 1 to {MAX_WEIGHT:,}, got: {weight!r}"
        )
    try:
        if not url:  # no default: the directory's own store would become a cell
            raise InvalidUrl
        full = absolute(url)
    except InvalidUrl:
        # The message omits the URL: it may be one of another kind of database, with a password.
        raise InvalidUrl(
            f"the URL of cell {name!r} names no store: write embedded:PATH, fdb: or fdb:/path/to/fdb.cluster"
        ) from None
    given = {"url": full, "weight": weight, "web": None if web is None else _checked_address(web)}
    return {setting: value for setting, value in given.items() if value is not None}


def _checked_address(web: str) -> str:
    """Return a web address without a slash at its end; raises `InvalidConfiguration`."""
    if not isinstance(web, str) or (web and not _ADDRESS.fullmatch(web)):
        raise InvalidConfiguration(
            f"expected the web address of a cell as https://HOST, perhaps with a port and a path, got: {web!r}"
        )
    return web.rstrip("/")


def read_cell(tr: TransactionRead, name: str) -> Cell:
    """Return a cell's entry; raises `CellNotKnown`."""
    stored = tr.get(keys.cell(name)).value
    if stored is None:
        raise CellNotKnown(f"the directory has no cell {name!r}: `cq cells list` shows its cells")
    return _entry(name, stored)


def _entry(name: str, stored: bytes) -> Cell:
    try:
        return Cell.from_bytes(stored)
    except CorruptData as error:
        raise CorruptData(
            f"the entry of cell {name!r} is damaged, `cq cells add {name} URL` writes it again, without its limit, "
            f"weight and state: {error}"
        ) from None


def _readable(stored: bytes) -> Cell | None:
    try:
        return Cell.from_bytes(stored)
    except CorruptData:
        return None


def _read_cells(tr: TransactionRead, snapshot: TransactionRead) -> list[CellStatus]:
    """Read all cells: their entries through `tr`, their numbers of users through `snapshot`."""
    rows = [(keys.cell_of(row.key), row.value) for row in tr.get_range(*keys.cells())]
    entries = [(name, _entry(name, value)) for name, value in rows]
    users = [snapshot.get(keys.count(name)) for name, _ in entries]  # all are in flight together
    return [_status(name, cell, each) for (name, cell), each in zip(entries, users, strict=True)]


def _status(name: str, cell: Cell, users: Value) -> CellStatus:
    return CellStatus(name=name, **vars(cell), users=keys.count_of(users.value))


def _fill_of(stored: bytes | None) -> str:
    return EMPTIEST if stored is None else stored.decode()


def read_record(tr: TransactionRead, user: Any) -> Record:
    """Return a user's record; raises `UserNotPlaced`, `UserDeleted`, `InvalidData`."""
    return _stored_record(user, tr.get(keys.record(keys.encoded_user(user))).value)


def _record_or_error(user: Any, stored: bytes | None) -> Record | CqError:
    try:
        return _stored_record(user, stored)
    except (CellError, CorruptData) as error:
        return error


def _stored_record(user: Any, stored: bytes | None) -> Record:
    if stored is None:
        raise UserNotPlaced(
            f"user {user!r} is in no cell: `cq cells place`, or Cells.place(), puts users into cells"
        )
    try:
        record = Record.from_bytes(stored)
    except CorruptData as error:
        raise CorruptData(f"the record of user {user!r} in the directory is damaged: {error}") from None
    return _checked_record(user, record)


def _checked_record(user: Any, record: Record) -> Record:
    if not record.cell:
        raise deleted_error(user)
    if record.epoch == 0:
        raise UserNotPlaced(
            f"user {user!r} is being adopted by cell {record.cell!r}: Cells.adopt() continues it"
        )
    return record


def deleted_error(user: Any) -> UserDeleted:
    """Return the error for any use of a deleted user."""
    return UserDeleted(
        f"user {user!r} was deleted, and the id cannot be used again: place the user under a new id"
    )


def to_fill(cells: Iterable[CellStatus], fill: str) -> CellStatus | None:
    """Return the cell for a new user: the newest that takes users, or the least full one; None if none takes users."""
    taking = [each for each in cells if not each.closed]
    if fill == NEWEST:
        return max(taking, key=lambda each: each.number, default=None)
    return min(taking, key=CellStatus.fullness_by_load, default=None)


def emptiest(cells: Iterable[CellStatus]) -> CellStatus | None:
    """Return the cell with the fewest users by its weight that takes users; None if none does."""
    return min((each for each in cells if not each.closed), key=lambda each: each.fullness(1), default=None)
