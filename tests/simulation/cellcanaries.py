"""Canaries of cells and of forwarding, see `canary`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq import runtime
from cq.cells.cells import Location
from cq.cells.directory import add_users, take_seat
from cq.cells.move import UserDeletion, UserMove
from cq.cells.records import Record
from cq.cells.router import Router
from cq.cells.user_data import UserData
from cq.errors import UserDeleted
from cq.keys import cell as cellkeys
from cq.keys.link import LinkKeys, received
from cq.observers.links.target import Changes
from cq.observers.links.targets.queue import QueueTarget
from cq.store.transact import transact
from tests.simulation.canary import Canaries, reads_without_conflict

cells = Canaries("cells")


@cells.replaces("cq.cells.cells.Cells._enter_cell", seed=15, only={"move"})
def reads_where_a_user_is_without_a_conflict(
    enter: Any, self: Any, tr: Any, user: Any, location: Location
) -> Any:
    """A move that begins does not keep writes under way from being committed in the old cell."""
    found = enter(self, _SnapshotOnly(tr), user, location)
    found.tr = tr
    return found


class _SnapshotOnly:
    """A transaction whose reads are its snapshot's."""

    def __init__(self, tr: Any) -> None:
        self.get, self.set, self.add = tr.snapshot.get, tr.set, tr.add


@cells.replaces("cq.cells.directory.Directory.advance", seed=33, only={"move", "deaths", "freezes"})
def switches_a_user_again(advance: Any, self: Any, user: Any, before: Record, after: Record) -> None:
    """A mover that was late says where the user is, whatever has come to pass meanwhile."""
    if before.target is None:
        advance(self, user, before, after)
        return
    encoded = cellkeys.encoded_user(user)

    def change(tr: Any) -> None:
        add_users(tr, before.cell, -1)
        tr.clear(cellkeys.within(before.cell, encoded))
        tr.set(cellkeys.within(after.cell, encoded), b"")
        tr.set(cellkeys.record(encoded), after.to_bytes())

    transact(self.db, change)


@cells.patches(seed=32, only={"limits", "move"})
def takes_seats_without_a_conflict() -> Any:
    """Two placements at once take the last seat of a cell."""

    def take(tr: Any, name: str, max_users: int | None) -> None:
        runtime.sleep(0.2)  # both have read that there is a seat
        weak: Any = _SnapshotOnly(tr)
        take_seat(weak, name, max_users)

    return patch("cq.cells.directory.take_seat", take)


@cells.replaces("cq.cells.directory.Directory.begin_move", also={"limits", "move"}, seed=2)
def takes_no_seat_for_a_mover(begin: Any, self: Any, user: Any, target: str) -> Any:
    """A user on the way to a cell is not counted there, so the cell may be full at the switch."""
    with patch("cq.cells.directory.take_seat", lambda *_: None):
        return begin(self, user, target)


@cells.replaces("cq.cells.router.Router.cell_of", seed=10, only={"move"})
def remembers_users_for_ever(cell_of: Any, self: Router, user: Any) -> Any:
    """A router goes on to take the requests of a user who has left its cell."""
    found = cell_of(self, user)
    self._users = dict.fromkeys(self._users, float("inf"))
    return found


@cells.replaces("cq.cells.router.Router.cell_of", only={"move"})
def redirects_from_memory(cell_of: Any, self: Router, user: Any) -> Any:
    """Two routers that remember where a user was lead a request to and fro."""
    encoded = cellkeys.encoded_user(user)
    known = self.__dict__.setdefault("known", {})
    return known[encoded] if encoded in known else known.setdefault(encoded, cell_of(self, user))


@cells.replaces("cq.cells.ask_all._ask_users", seed=22)
def reads_users_in_former_cells(read: Any, tr: Any, cells: Any, ask: Any, of: Any) -> Any:
    """A question about many users is answered by the cells in which they were."""
    return {user: ask(UserData(tr, user, location.cell)) for user, location in of}


@cells.replaces("cq.cells.move.UserMove._write", seed=2)
def moves_without_entries(write: Any, self: Any, tr: Any, **details: Any) -> None:
    """A search does not find a user who has moved."""
    with patch("cq.keys.cell.entry_in", lambda *_: None):
        write(self, tr, **details)


@cells.replaces("cq.cells.move.UserMove._clear_some", seed=2)
def leaves_entries_behind(clear: Any, self: Any, tr: Any, epoch: int) -> bool:
    """The index of a cell goes on growing with users who are not there."""
    with patch("cq.keys.cell.entry_in", lambda *_: None):
        return bool(clear(self, tr, epoch))


@cells.replaces(
    "cq.cells.move.UserDeletion._close", seed=5, only={"deletes", "forward", "deaths", "unknown commits"}
)
def takes_away_before_it_deletes(close: Any, self: Any, record: Record, final: Any) -> Any:
    """What the application does at a deletion is a transaction of its own."""
    if final is not None:
        transact(self._stores[record.cell], lambda tr: final(UserData(tr, self._user, record.cell)))
    return close(self, record, None)


@cells.replaces("cq.cells.directory.Directory.bury", seed=5, also={"deletes"})
def uses_an_id_again(bury: Any, self: Any, user: Any, cell: str) -> None:
    """The directory forgets a deleted user."""
    bury(self, user, cell)
    transact(self.db, lambda tr: tr.clear(cellkeys.record(cellkeys.encoded_user(user))))


@cells.patches(seed=33, only={"deletes", "move"})
@contextmanager
def moves_the_deleted() -> Iterator[None]:
    """A move continues although the user's deletion is decided; here it takes seconds until that is complete."""
    leave, clear = UserMove._leave, UserDeletion.clear

    def leave_anyway(self: UserMove, tr: Any, record: Record) -> None:
        with suppress(UserDeleted):
            leave(self, tr, record)

    def clear_late(self: UserDeletion, cell: str) -> None:
        runtime.sleep(5.0)
        clear(self, cell)

    with patch.object(UserMove, "_leave", leave_anyway), patch.object(UserDeletion, "clear", clear_late):
        yield


@cells.patches(seed=15, only={"names"})
def claims_without_a_conflict() -> Any:
    """Two users who claim a name at once both get it."""
    return reads_without_conflict(lambda key: key.startswith(cellkeys.CELLS + b"a"))


@cells.patches(seed=12, only={"names", "deletes"})
def names_the_deleted() -> Any:
    """A user claims a name while the directory buries the user."""
    return reads_without_conflict(lambda key: key.startswith(cellkeys.record(b"")))


@cells.replaces("cq.cells.move.UserAdoption._convert", only={"adopt"})
def adopts_the_first_piece(convert: Any, self: Any, tr: Any, cell: str, function: Any) -> bool:
    """A user is in the cell before all old data are below the user's prefix."""

    def convert_some(data: UserData) -> bool:
        function(data)
        return False

    return bool(convert(self, tr, cell, convert_some))


@cells.replaces(
    "cq.observers.links.targets.queue.QueueTarget._apply", seed=119, only={"forward", "unknown commits"}
)
def forwards_without_a_fence(
    apply: Any, self: QueueTarget, tr: Any, changes: Changes
) -> tuple[bool, str | None]:
    """A batch that comes again is applied again."""
    if changes.entries:
        source = self._source
        key = received(self._into.keys, source.store, changes.bucket, LinkKeys(source.queue, source.link))
        changes = replace(changes, previous=(tr.get(key).value or b"").decode())
    found: tuple[bool, str | None] = apply(self, tr, changes)
    return found
