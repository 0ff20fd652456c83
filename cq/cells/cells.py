"""Users spread over many stores: each user's data are in one cell, and a small directory records which one.

    cells = Cells(cq.open("embedded:directory.db"))
    cells.add_cell("eu-1", "fdb:/etc/foundationdb/eu-1.cluster")
    cells.place("ada")
    cells.transact("ada", lambda data: data.tr.set(data.prefix + b"name", b"Ada"))
    cells.move("ada", "eu-2")

Each transaction of a user reads the user's fence in the cell with a conflict. The read validates the cached location,
and a move that begins conflicts with all transactions under way, so no write is lost (see `cq.cells.move`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

from cq import runtime, store
from cq.backoff import delay_after
from cq.cells.directory import (
    EMPTIEST,
    NEWEST,
    CellStatus,
    Directory,
    checked_settings,
    deleted_error,
    emptiest,
)
from cq.cells.move import UserAdoption, UserDeletion, UserMove, users_being_deleted
from cq.cells.names import Names, take_names
from cq.cells.records import DELETED, DRAINING, HERE, OPEN, Fence, Record
from cq.cells.stores import CellStores, Opener
from cq.cells.user_data import UserData
from cq.durations import Span, span_of
from cq.encoding import codec
from cq.errors import (
    CellError,
    CellMismatch,
    CellNotKnown,
    CorruptData,
    CqError,
    InvalidConfiguration,
    NoRoom,
    StoreError,
    UserDeleted,
    UserMoving,
    UserNotPlaced,
)
from cq.keys import cell as keys
from cq.store.api import Database, Transaction, TransactionRead, error_code
from cq.store.transact import transact

T = TypeVar("T")

CACHED_USERS: Final = 100_000
# Between two tries while a user is being moved, which usually takes milliseconds.
FIRST_PAUSE: Final = 0.01
LAST_PAUSE: Final = 0.5
_MAX_LOAD: Final = 1e18


class Location(NamedTuple):
    """The location of a user: the cell's name, and the epoch, which counts the user's cells."""

    cell: str
    epoch: int


class Move(NamedTuple):
    """A move of a user from one cell to another."""

    user: Any
    source: str
    target: str


class _Elsewhere(Exception):
    """The user is not in the cell, or not in the epoch, of the transaction."""


class Cells:
    """A directory of cells, and the cells' stores; for any thread. Use it as a context manager, or `close` it.

    Users are str, int or bytes, not empty, up to 200 bytes in CBOR.

    Args:
        directory: the database of the directory.
        opener: opens the store of a cell's URL; by default as `cq.open`, without `$CQ_PREFIX`. It is called as
            `opener(url, create=False)`, and by `add_cell` with `create=True` for a new cell: only then it may create
            the store.

    Attributes:
        names: second names of users, such as logins and e-mail addresses.
    """

    def __init__(self, directory: Database, *, opener: Opener = store.open_exactly) -> None:
        self.directory = Directory(directory)
        self.names = Names(self.directory)
        self._stores = CellStores(self.directory, opener)
        self._cache: dict[bytes, Location] = {}  # by users in CBOR: in a dict 1 and 1.0 are one key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stores of the cells; the directory's database stays open."""
        self._stores.close()

    # Cells

    def add_cell(self, name: str, url: str, *, weight: int | None = None, web: str | None = None) -> None:
        """Add a cell, or change the URL, weight or web address of an existing one.

        The store of a new cell is created if needed. It records the cell and the directory that it belongs to; it
        cannot become another cell.

        Args:
            name: 1 to 100 letters, digits, `_`, `.` or `-`.
            url: a URL of `cq.open`, the same for all processes; paths are stored in full. Its `?mode=` is for a store
                that is created now, and is not stored.
            weight: capacity compared with other cells, 1 to 1,000,000; None: unchanged, 1 for a new cell.
            web: address of the cell's web servers, such as `https://eu-1.example.com`, to which a `Router` redirects
                requests; empty: it has no address; None: unchanged.

        Raises:
            InvalidConfiguration, InvalidUrl: the name, the weight, the web address or the URL is invalid.
            CellMismatch: the store is another cell, or belongs to another directory, or is not the store that this cell
                had.
            StoreError: the store cannot be opened.
        """
        settings = checked_settings(name, url, weight, web)
        is_new = False
        try:
            self.directory.cell(name)
        except CellNotKnown:
            is_new = True
        except CorruptData:  # the cell's store knows which cell it is
            pass
        self._stores.claim(name, url, is_new=is_new)
        self.directory.put_cell(name, settings, is_new=is_new)

    def drain_cell(self, name: str, *, draining: bool = True) -> None:
        """Close a cell for new users, so that `rebalance` empties it; with a false `draining`, open it again.

        Raises:
            CellNotKnown: there is no such cell.
        """
        self.directory.change_cell(name, state=DRAINING if draining else OPEN)

    def limit_cell(self, name: str, max_users: int | None) -> None:
        """Limit the users of a cell to `max_users`, those on their way to it included; None: no limit.

        A full cell takes no new users and no moves, until users leave or the limit is raised. If a cell has more users
        than a new limit, they stay until `rebalance` moves them.

        Raises:
            CellNotKnown: there is no such cell.
            InvalidConfiguration: the limit is no int from 0 on.
        """
        if max_users is not None and (type(max_users) is not int or max_users < 0):
            raise InvalidConfiguration(f"expected a limit of users from 0 on, got: {max_users!r}")
        self.directory.change_cell(name, max_users=max_users)

    def report_load(self, name: str, load: float | None) -> None:
        """Report the load of a cell, for `place`, in the unit of its weight: such as gigabytes, or a share of 1.

        New users then go to the cell whose load is least in proportion to its weight, instead of the one with the
        fewest users, and a cell whose load has reached its weight takes no users. Report the loads of all cells, again
        and again: cq does not measure them. None: count the users again. Raises as `limit_cell`.
        """
        if load is not None and not (type(load) in (int, float) and 0 <= load <= _MAX_LOAD):
            raise InvalidConfiguration(f"expected a load from 0 to {_MAX_LOAD:g}, got: {codec.brief(load)}")
        self.directory.change_cell(name, load=None if load is None else float(load))

    def fill(self, cell: str) -> None:
        """Say where new users go: `emptiest`, the default, or `newest`, the cell that was added last and is not full.

        Raises `InvalidConfiguration` for another word.
        """
        if cell not in (EMPTIEST, NEWEST):
            raise InvalidConfiguration(
                f"expected {EMPTIEST!r} or {NEWEST!r} as the cell to fill, got: {cell!r}"
            )
        self.directory.set_fill(cell)

    def cells(self) -> list[CellStatus]:
        """Return all cells with their numbers of users, by name."""
        return self.directory.cells()

    def store(self, name: str) -> Database:
        """Return the store of a cell: for its queues, its workers, and reads that concern no single user.

        Raises `CellNotKnown`, `CellMismatch`, `StoreError`.
        """
        return self._stores[name]

    def fence_in(self, tr: TransactionRead, name: str, stored: bytes | None) -> Fence:
        """Return the fence of a user of this cell, as stored there; raises `CellMismatch` for another store."""
        return self._stores.fence_in(tr, name, stored)

    # Users

    def place(self, user: Any, *, names: Sequence[str] = ()) -> str:
        """Place a user in the cell that `fill` names, with these second names; returns the name of the cell.

        A placed user stays in its cell. If another user has one of the `names`, nothing is changed. Raises `NoRoom`,
        `NameTaken`, `UserDeleted`, `InvalidData`.
        """
        return self._remember(user, self.directory.place(user, lambda tr: take_names(tr, user, names))).cell

    def locate(self, user: Any) -> Location:
        """Return the user's location, from the cache if possible; `transact` detects an outdated one.

        Raises `UserNotPlaced`, `UserDeleted`, `InvalidData`.
        """
        known = self._cache.get(keys.encoded_user(user))
        return known if known is not None else self._remember(user, self.directory.record(user))

    def locate_all(self, users: Iterable[Any]) -> dict[Any, Location | CqError]:
        """Return the locations of users, with at most one read of the directory, or the error that `locate` raises.

        Raises `InvalidData`.
        """
        found: dict[Any, Location | CqError | None] = {
            user: self._cache.get(keys.encoded_user(user)) for user in users
        }
        records = self.directory.records(user for user, known in found.items() if known is None)
        read = {
            user: each if isinstance(each, CqError) else self._remember(user, each)
            for user, each in records.items()
        }
        return {user: known or read[user] for user, known in found.items()}

    def transact(self, user: Any, function: Callable[[UserData], T], *, timeout: Span = 10.0) -> T:
        """Run `function(data)` in a transaction of the user's cell, commit it, and return what it returned.

        It may run several times, as with `cq.transact`: also after a commit of unknown result, and then perhaps in
        another cell, to which the user's data have moved with the effects of that commit. While the user is being
        moved, it waits, at most `timeout` in all.

        Raises:
            UserNotPlaced: the user is in no cell.
            UserDeleted: the user was deleted.
            UserMoving: the user was being moved all the time; nothing was committed: try again.
            CellMismatch: a store is not the one that the directory has for the cell.
            Exception: an error of the function, with nothing committed, or of `cq.transact`.
        """
        end = runtime.monotonic() + span_of(timeout)
        tries = 0
        while True:
            location = self.locate(user)
            db = self._stores[location.cell]
            try:
                return transact(db, lambda tr: function(self._enter_cell(tr, user, location)))  # noqa: B023
            except _Elsewhere:
                record = self._refresh(user, location)
            if record is not None:
                if runtime.monotonic() >= end:
                    raise UserMoving(
                        f"user {user!r} is being moved from cell {record.cell!r} to {record.target!r}: try again, "
                        "and check with `cq cells list` whether the move makes progress"
                    )
                tries += 1
                pause = delay_after(tries, first=FIRST_PAUSE, longest=LAST_PAUSE)
                runtime.sleep(min(pause, max(0.0, end - runtime.monotonic())))

    def _enter_cell(self, tr: Transaction, user: Any, location: Location) -> UserData:
        """Return the user's data if the fence is here: read with a conflict, so a move that begins aborts it."""
        key = keys.fence(keys.encoded_user(user))
        stored = tr.get(key).value
        fence = self.fence_in(tr, location.cell, stored)
        if fence.state == DELETED:
            self.forget([user])
            raise deleted_error(user)
        if fence != Fence(HERE, location.epoch):
            raise _Elsewhere
        if stored is None:
            tr.set(key, fence.to_bytes())
        return UserData(tr, user, location.cell)

    def forget(self, users: Iterable[Any]) -> None:
        """Forget the locations of users who are not there: `locate` reads the directory again."""
        for user in users:
            self._cache.pop(keys.encoded_user(user), None)

    def _refresh(self, user: Any, location: Location) -> Record | None:
        """Return the user's record if a move from the location is under way; None if the user is elsewhere now."""
        self.forget([user])
        record = self.directory.record(user)
        if Location(record.cell, record.epoch) != location:
            self._remember(user, record)
            return None
        if record.target is None:
            raise CellMismatch(
                f"cell {location.cell!r} does not have user {user!r} as the directory says (epoch {location.epoch}): "
                "one of the two was restored to an older state; restore both from backups of the same moment"
            )
        return record

    def _remember(self, user: Any, record: Record) -> Location:
        location = Location(record.cell, record.epoch)
        if len(self._cache) >= CACHED_USERS:
            self._cache.clear()
        self._cache[keys.encoded_user(user)] = location
        return location

    def adopt(
        self, user: Any, cell: str, convert: Callable[[UserData], bool], *, names: Sequence[str] = ()
    ) -> str:
        """Place a user in the cell whose store has the user's data already; returns the name of the user's cell.

        When the store of an application becomes a cell, its data are not where `transact` looks for them.
        `convert(data)` moves some of them, such as 100 rows: it reads them with conflicts, writes them below
        `data.prefix`, clears them in the old place, and returns whether there are more. It runs in a transaction for
        each piece, with the retries of `cq.transact`. After a crash, and while another process does the same, call
        `adopt` again: it continues. The limit of the cell does not matter. Without effect if the user has a cell.

        Args:
            user: the user's id.
            cell: the name of the cell.
            convert: see above.
            names: second names of the user.

        Raises:
            NameTaken: another user has one of the names; nothing was changed.
            UserDeleted, CellNotKnown, CellMismatch, StoreError: as `move`.
            CellError: another cell adopts the user.
            Exception: an error of `convert`; earlier pieces stay converted.
        """
        adoption = UserAdoption(self.directory, self._stores, user)
        return self._remember(user, adoption.run(cell, convert, names)).cell

    # Moves

    def move(self, user: Any, cell: str) -> None:
        """Move a user to another cell, after a move that is under way; returns when the move is complete.

        Any process can continue a move whose process has died, by another call of `move`, or by `resume_moves`.

        Raises:
            UserNotPlaced, UserDeleted, CellNotKnown: there is no such user or cell.
            NoRoom: the cell is full or being drained.
            MoveFailed: the copy differs from the original; the next try copies again.
            CellMismatch, StoreError: a store is not the one that the directory has for the cell, or cannot be used.
            FDBError: from a store, such as 1510 for a full disk; the next call continues.
        """
        self._remember(user, UserMove(self.directory, self._stores, user).to(cell))

    def moves(self) -> Iterator[Move]:
        """Yield the moves under way, including those with old data that are not cleared yet.

        Raises `CorruptData` or `UserNotPlaced` for a user whose record is damaged or lost, after all others.
        """
        failed: CqError | None = None
        for user in self.directory.moving():
            try:
                record = self.directory.record(user)
            except UserDeleted:  # in the meantime
                continue
            except (CorruptData, UserNotPlaced) as error:
                failed = failed or error
                continue
            if record.target is not None:
                yield Move(user, record.cell, record.target)
            elif record.source is not None:
                yield Move(user, record.source, record.cell)
        if failed is not None:
            raise failed

    def resume_moves(self) -> int:
        """Complete all moves under way, of all processes; returns their number.

        Raises as `move`, after it has completed the moves that it can: one cell whose store fails, or one user whose
        data are damaged, stops no others.
        """
        return _try_all(partial(self._resume_move, user) for user in self.directory.moving())

    def _resume_move(self, user: Any) -> int:
        try:
            self._remember(user, UserMove(self.directory, self._stores, user).finish())
        except UserDeleted:
            self.delete(user)
        return 1

    def rebalance(self, most: int = 1_000) -> Iterator[Move]:
        """Complete moves under way, then empty drained cells, then move users above limits, then balance by weights.

        Moves at most `most` users, one for each step of the iterator, and ends when no move would help. Raises as
        `move`, after it has moved the users that it can: one cell whose store fails stops no others.
        """
        without: set[str] = set()
        _, failed = _tried(self.resume_moves)
        for _ in range(most):
            chosen = self._choose_move(without)
            if chosen is None:
                break
            _, error = _tried(partial(self.move, chosen.user, chosen.target))
            if error is None:
                yield chosen
            elif isinstance(error, UserDeleted):
                self.delete(chosen.user)
            elif not isinstance(error, NoRoom):  # others have filled or drained the target: choose again
                failed = failed or error
                without |= self._lost([chosen.source, chosen.target])
        if failed is not None:
            raise failed

    # Deletions

    def delete(
        self, user: Any, final: Callable[[UserData], object] | None = None, *, keep_names: bool = False
    ) -> None:
        """Delete a user: all data, ids and old ids, the place in the cell, names. The id cannot be used again.

        A move under way is completed first. Transactions of the user under way, and later ones, raise `UserDeleted`.
        Updates that the user's transactions have added to queues of the cells stay counted, as statistics of past
        events. If a queue counts what exists, subtract the user's part in `final`.

        After a crash, call `delete` again; once `final` has committed, `resume_deletions` also completes the deletion.
        Without effect if the user was deleted before.

        Args:
            user: the user's id.
            final: called with the user's data in the transaction that decides the deletion, with the retries of
                `cq.transact`; its effects are committed exactly once. If it raises, nothing is deleted.
            keep_names: whether nobody else may ever claim the user's second names.

        Raises:
            UserNotPlaced: the user is in no cell.
            MoveFailed, CellMismatch, StoreError: as `move`.
            Exception: an error of `final`.
        """
        self.forget([user])
        UserDeletion(self.directory, self._stores, user).run(final, keep_names)

    def resume_deletions(self) -> int:
        """Complete the deletions of all processes that are decided; returns their number.

        Raises as `delete`, after it has tried all cells.
        """
        return _try_all(partial(self._resume_deletions, cell.name) for cell in self.cells())

    def _resume_deletions(self, cell: str) -> int:
        count = 0
        while users := transact(self._stores[cell], users_being_deleted):
            for user in users:
                UserDeletion(self.directory, self._stores, user).clear(cell)
            count += len(users)
        return count

    def _lost(self, names: Sequence[str]) -> set[str]:
        """Return those of these cells whose stores cannot be used; all cells if the cause is another one."""

        def check(name: str) -> None:
            transact(self.store(name), lambda tr: self._stores.check(tr, name))

        return {name for name in names if _tried(partial(check, name))[1]} or {*names}

    def _choose_move(self, without: Collection[str] = ()) -> Move | None:
        """Return the move that balances the cells most, except those in `without`; None if none does."""
        cells = [each for each in self.cells() if each.name not in without]
        target = emptiest(cells)
        if target is None:
            return None
        drained = [each for each in cells if each.state == DRAINING and each.users > 0]
        above = [each for each in cells if each.max_users is not None and each.users > each.max_users]
        crowded = [each for each in cells if each.fullness() > target.fullness(1)]
        source = max(drained or above or crowded, key=lambda each: (each.fullness(), each.name), default=None)
        if source is None:
            return None
        user = next(self.directory.users_in(source.name), None)
        return None if user is None else Move(user, source.name, target.name)


def _tried(act: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call a function; returns its result, or the error if it may come from one cell or one user.

    Such errors come from a move, from opening a cell's store, from a transaction in it, or from damaged data in it.
    Others are raised.
    """
    try:
        return act(), None
    except Exception as error:
        if isinstance(error, CellError | CorruptData | StoreError) or error_code(error) is not None:
            return None, error
        raise


def _try_all(acts: Iterable[Callable[[], int]]) -> int:
    """Return the sum of what the functions return; raises the first error of a cell at the end."""
    count, failed = 0, None
    for act in acts:
        done, error = _tried(act)
        count, failed = count + (done or 0), failed or error
    if failed is not None:
        raise failed
    return count
