"""The move of a user between cells, the deletion and the adoption of a user, under fences in the cells.

A move copies and verifies the data while no transaction can write, and then switches:

    1. directory  record the move: the target, with the same cell and epoch e
    2. source     fence `here` e -> `leaving` e+1. Every transaction of the user reads the fence with a conflict, so
                  those under way fail, and later ones get `UserMoving`: the data do not change during the copy
    3. target     fence -> `arriving` e+1; copy the data piece by piece; each piece moves the fence's cursor
    4.            read both sides again, count and compare
    5. target     fence -> `here` e+1; then in the directory: cell = target, epoch e+1, source = the former cell
    6. source     clear the old data piece by piece; the fence stays `gone` e+1 for ever
    7. directory  remove the source: the move is complete

The directory's record determines the remaining steps, and each step reads the fence with a conflict before it writes.
So any process can continue at any point, and of two concurrent processes only one does each step. `leaving` in step 2
comes before `here` in step 5, so at no moment do two cells have the user. A late process finds a later epoch and stops,
even in a cell to which the user has returned: therefore fences stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from cq.cells.directory import Directory, deleted_error
from cq.cells.names import free_names, take_names
from cq.cells.records import ARRIVING, DELETED, GONE, HERE, LEAVING, Fence, Record
from cq.cells.stores import CellStores
from cq.cells.user_data import UserData
from cq.errors import CellMismatch, MoveFailed, UserDeleted
from cq.keys import after, below
from cq.keys import cell as keys
from cq.store.api import Database, KeyValue, Transaction, TransactionRead
from cq.store.transact import transact

PIECE_BYTES: Final = 200_000
PIECE_ROWS: Final = 2_000
MAX_TRIES: Final = 20
"""Limit of tries in which other processes interfere and the record stays the same: helpers need fewer."""
_KEEP = b"names"
_PAGE = 500
_LastAct: TypeAlias = Callable[[UserData], object]
Convert: TypeAlias = Callable[[UserData], bool]


class _Overtaken(Exception):
    """Another process has continued the move: the caller reads the record again."""


class UserMove:
    """The moves of one user; for one thread at a time.

    Args:
        directory: the directory of the cells.
        stores: the stores of the cells.
        user: the user's id.
    """

    def __init__(self, directory: Directory, stores: CellStores, user: Any) -> None:
        self._directory = directory
        self._stores = stores
        self._user = user
        self._encoded = keys.encoded_user(user)

    def to(self, target: str) -> Record:
        """Complete an earlier move, then move the user; returns the new record. Raises as `Cells.move`."""
        while True:
            record = self.finish()
            if record.cell == target:
                return record
            # Before it begins: a move from or to a cell without a store, or to an emptied one, could not end.
            self._stores[record.cell]
            transact(self._stores[target], lambda tr: self._stores.check(tr.snapshot, target))
            self._directory.begin_move(self._user, target)

    def finish(self) -> Record:
        """Do the remaining steps of a move under way; returns the user's new record. Raises as `Cells.move`."""
        before, times = None, 0
        while True:
            record = self._directory.record(self._user)
            if not record.is_moving:
                return record
            before, times = record, times + 1 if record == before else 0
            if times > MAX_TRIES:
                raise CellMismatch(
                    f"cells have a later state of user {self._user!r} than the directory (epoch {record.epoch}): one "
                    "of them was restored to an older state; restore all from backups of the same moment"
                )
            try:
                if record.target is not None:
                    self._copy_and_switch(record, record.target)
                elif record.source is not None:
                    self._clear_source(record, record.source)
            except _Overtaken:
                continue

    def _copy_and_switch(self, record: Record, target: str) -> None:
        """Do steps 2 to 5."""
        source_db, target_db = self._stores[record.cell], self._stores[target]
        leaving = Fence(LEAVING, record.epoch + 1)
        transact(source_db, lambda tr: self._leave(tr, record))
        if transact(target_db, lambda tr: self._arrive(tr, record, target)):
            copied = self._copy(source_db, leaving, target_db)
            if self._digest(source_db, leaving) != self._digest(target_db, copied):
                transact(target_db, lambda tr: self._begin_again(tr, copied))
                raise MoveFailed(
                    f"the copy of user {self._user!r} in cell {target!r} differs from the original in cell "
                    f"{record.cell!r}: write users' data only through Cells.transact(), and move the user again"
                )
            transact(target_db, lambda tr: self._finish_copy(tr, copied))
        self._directory.advance(self._user, record, Record(target, record.epoch + 1, source=record.cell))

    def _clear_source(self, record: Record, source: str) -> None:
        """Do steps 6 and 7."""
        db = self._stores[source]
        while transact(db, lambda tr: self._clear_some(tr, record.epoch)):
            pass
        self._directory.advance(self._user, record, Record(record.cell, record.epoch))

    # The fences

    def _fence(self, tr: TransactionRead) -> Fence | None:
        stored = tr.get(keys.fence(self._encoded)).value
        return None if stored is None else Fence.from_bytes(stored)

    def _set_fence(self, tr: Transaction, fence: Fence) -> None:
        tr.set(keys.fence(self._encoded), fence.to_bytes())

    def _expect(self, tr: TransactionRead, fence: Fence) -> None:
        if self._fence(tr) != fence:
            raise _Overtaken

    def _leave(self, tr: Transaction, record: Record) -> None:
        """Do step 2, unless it is done; raises `UserDeleted`."""
        fence = self._fence_at(tr, record)
        if fence == Fence(HERE, record.epoch):
            self._set_fence(tr, Fence(LEAVING, record.epoch + 1))
        elif fence == Fence(DELETED, record.epoch + 1):
            raise deleted_error(self._user)
        elif fence.epoch <= record.epoch:
            raise self._restored_error(record.cell, record)
        elif fence != Fence(LEAVING, record.epoch + 1):
            raise _Overtaken

    def _fence_at(self, tr: Transaction, record: Record) -> Fence:
        """Return the fence in the record's cell; raises `CellMismatch` for another store."""
        return self._stores.fence_in(tr, record.cell, tr.get(keys.fence(self._encoded)).value)

    def _arrive(self, tr: Transaction, record: Record, target: str) -> bool:
        """Begin step 3, unless it has begun; returns False if the first half of step 5 is done."""
        epoch = record.epoch + 1
        fence = self._fence(tr)
        if fence is None:
            self._stores.check(tr, target)  # it may have been emptied
        if fence is None or (fence.state == GONE and fence.epoch < epoch):
            self._begin_copy(tr, Fence(ARRIVING, epoch, tries=1))
        elif fence.epoch < epoch:
            raise self._restored_error(target, record)
        elif fence.epoch > epoch or fence.state not in (ARRIVING, HERE):
            raise _Overtaken
        return fence is None or fence.state != HERE

    def _finish_copy(self, tr: Transaction, copied: Fence) -> None:
        """Do the first half of step 5: the verified copy becomes the user's data."""
        here = Fence(HERE, copied.epoch)
        if self._fence(tr) != here:
            self._expect(tr, copied)
            self._set_fence(tr, here)

    def _clear_some(self, tr: Transaction, epoch: int) -> bool:
        """Do a piece of step 6; returns whether there is more."""
        gone = Fence(GONE, epoch)
        fence = self._fence(tr)
        if fence == Fence(LEAVING, epoch):
            self._set_fence(tr, gone)
        elif fence != gone:
            return False  # all is cleared, and the user may have returned: do not clear the new data
        return self._clear_piece(tr)

    def _clear_piece(self, tr: Transaction) -> bool:
        """Clear a piece of the data; returns whether there was any."""
        begin, _ = keys.all_of(self._encoded)
        rows = self._piece(tr, b"")
        if rows:
            tr.clear_range(begin, after(rows[-1].key))
        for row in rows:
            if (name := keys.entry_in(self._encoded, row.key)) is not None:
                tr.clear(keys.listed_entry(name, self._encoded))
        return bool(rows)

    def _restored_error(self, cell: str, record: Record) -> CellMismatch:
        return CellMismatch(
            f"cell {cell!r} has an older state of user {self._user!r} than the directory (epoch {record.epoch}): one "
            "of the two was restored to an older state; restore both from backups of the same moment"
        )

    # The copy

    def _begin_copy(self, tr: Transaction, arriving: Fence) -> None:
        tr.clear_range(*keys.all_of(self._encoded))
        self._set_fence(tr, arriving)

    def _begin_again(self, tr: Transaction, copied: Fence) -> None:
        """Discard a copy that differs from the original."""
        self._expect(tr, copied)
        self._begin_copy(tr, Fence(ARRIVING, copied.epoch, tries=copied.tries + 1))

    def _arriving(self, tr: TransactionRead, epoch: int) -> Fence:
        """Return the fence under which the data are copied; raises `_Overtaken` if it is another one."""
        fence = self._fence(tr)
        if fence is None or (fence.state, fence.epoch) != (ARRIVING, epoch):
            raise _Overtaken
        return fence

    def _copy(self, source: Database, leaving: Fence, target: Database) -> Fence:
        """Copy the remaining data; returns the fence in the target after that."""
        while True:
            before = transact(target, lambda tr: self._arriving(tr.snapshot, leaving.epoch))
            if before.cursor is None:
                return before
            rows = transact(source, partial(self._read, fence=leaving, cursor=before.cursor))
            transact(target, partial(self._write, before=before, rows=rows))

    def _write(self, tr: Transaction, before: Fence, rows: list[KeyValue]) -> None:
        """Write a piece, and move the cursor, unless another process has done so."""
        if self._fence(tr) != before:
            return
        begin = len(keys.all_of(self._encoded)[0])
        for row in rows:
            tr.set(row.key, row.value)
            if (name := keys.entry_in(self._encoded, row.key)) is not None:
                tr.set(keys.listed_entry(name, self._encoded), b"")
        self._set_fence(tr, replace(before, cursor=after(rows[-1].key)[begin:] if rows else None))

    def _read(self, tr: Transaction, fence: Fence, cursor: bytes) -> list[KeyValue]:
        """Read the next piece from a cursor on; empty at the end."""
        # While the fence is there, the data do not change, so a snapshot read suffices.
        self._expect(tr, fence)
        return self._piece(tr, cursor)

    def _piece(self, tr: Transaction, cursor: bytes) -> list[KeyValue]:
        begin, end = keys.all_of(self._encoded)
        rows: list[KeyValue] = []
        size = 0
        for row in tr.snapshot.get_range(begin + cursor, end, limit=PIECE_ROWS):
            rows.append(row)
            size += len(row.key) + len(row.value)
            if size > PIECE_BYTES:
                break
        return rows

    def _digest(self, db: Database, fence: Fence) -> tuple[int, bytes]:
        """Return the number of the user's rows in a cell, and a digest of them."""
        digest, count = hashlib.blake2b(digest_size=16), 0
        for row in self._rows(db, fence):
            for part in (row.key, row.value):
                digest.update(len(part).to_bytes(8, "big"))  # the lengths separate keys and values
                digest.update(part)
            count += 1
        return count, digest.digest()

    def _rows(self, db: Database, fence: Fence) -> Iterator[KeyValue]:
        begin = len(keys.all_of(self._encoded)[0])
        cursor = b""
        while rows := transact(db, partial(self._read, fence=fence, cursor=cursor)):
            yield from rows
            cursor = after(rows[-1].key)[begin:]


class UserDeletion(UserMove):
    """The deletion of one user, under the fences of moves; for one thread at a time.

        1.            complete a move under way
        2. cell       run the application's `final`; fence `here` e -> `deleted` e+1, with a note of the deletion, and
                      whether it frees the user's second names
        3. cell       clear the data piece by piece
        4. directory  the record becomes a tombstone: no cell, epoch e+1; the cell has one user less, the names are free
        5. cell       remove the note; the fence stays for ever

    Step 2 decides it: every transaction of the user reads the fence with a conflict, so those under way fail, and later
    ones get `UserDeleted`. The writes of `final` are committed with the fence, and so exactly once, however many
    processes delete the user. From then on the note lets any process continue. A move that begins in between finds the
    fence and stops before it has copied anything. The tombstone keeps the id from being placed again; the fence stops
    late processes.
    """

    def run(self, final: _LastAct | None, keep_names: bool) -> None:
        """Do all steps that are not done. Raises as `Cells.delete`."""
        for _ in range(MAX_TRIES):
            try:
                record = self._directory.record(self._user)
            except UserDeleted:
                return
            with suppress(UserDeleted):  # step 2 is done, and a move has begun since
                record = self.finish() if record.is_moving else record
            if self._close(record, final, keep_names):
                self.clear(record.cell)
                return
        raise CellMismatch(
            f"cell {record.cell!r} has another state of user {self._user!r} than the directory (epoch {record.epoch}): "
            "one of the two was restored to an older state; restore both from backups of the same moment"
        )

    def clear(self, cell: str) -> None:
        """Do the steps after step 2 that are not done, for a user whose fence in the cell is `deleted`."""
        db = self._stores[cell]
        note = transact(db, lambda tr: tr.snapshot.get(keys.deleting(self._encoded)).value)
        if note is None:
            return
        while transact(db, self._clear_deleted):
            pass
        self._directory.bury(
            self._user, cell, lambda tr: None if note == _KEEP else free_names(tr, self._user)
        )
        transact(db, lambda tr: tr.clear(keys.deleting(self._encoded)))

    def _close(self, record: Record, final: _LastAct | None, keep_names: bool) -> bool:
        """Do step 2, unless it is done; returns False if the user was moved meanwhile."""
        deleted = Fence(DELETED, record.epoch + 1)

        def close(tr: Transaction) -> bool:
            fence = self._fence_at(tr, record)
            if fence == Fence(HERE, record.epoch):
                if final is not None:
                    final(UserData(tr, self._user, record.cell))
                self._set_fence(tr, deleted)
                tr.set(keys.deleting(self._encoded), _KEEP if keep_names else b"")
            return fence in (deleted, Fence(HERE, record.epoch))

        return transact(self._stores[record.cell], close)

    def _clear_deleted(self, tr: Transaction) -> bool:
        """Do a piece of step 3; returns whether there is more."""
        fence = self._fence(tr)
        return fence is not None and fence.state == DELETED and self._clear_piece(tr)


class UserAdoption(UserMove):
    """The adoption of a user by a cell whose store has the user's data, but not where `Cells.transact` looks for them.

        1. directory  the record names the cell, with epoch 0; the user takes the second names
        2. cell       the application's `convert` moves the old data below the user's prefix, a piece in each
                      transaction; the last one writes the fence `here` 1
        3. directory  the record has epoch 1; the cell has one user more

    With a record of epoch 0, transactions and moves raise `UserNotPlaced`, but nobody can place the user elsewhere. All
    pieces read the fence with a conflict, so a late process converts nothing after the end.
    """

    def run(self, cell: str, convert: Convert, names: Sequence[str]) -> Record:
        """Do the steps that are not done; returns the user's record. Raises as `Cells.adopt`."""
        record = self._directory.begin_adoption(
            self._user, cell, lambda tr: take_names(tr, self._user, names)
        )
        if record.epoch > 0:
            return record
        db = self._stores[cell]
        while transact(db, lambda tr: self._convert(tr, cell, convert)):
            pass
        return self._directory.end_adoption(self._user)

    def _convert(self, tr: Transaction, cell: str, convert: Convert) -> bool:
        """Do a piece of step 2; returns whether there is more."""
        if self._fence(tr) is not None:
            return False
        self._stores.check(tr, cell)
        has_more = bool(convert(UserData(tr, self._user, cell)))
        if not has_more:
            self._set_fence(tr, Fence(HERE, 1))
        return has_more


def users_being_deleted(tr: Transaction) -> list[Any]:
    """Return users of a cell whose deletion is decided and not complete, some hundred at most."""
    prefix = keys.deleting()
    return [keys.user_in(prefix, row.key) for row in tr.snapshot.get_range(*below(prefix), limit=_PAGE)]
